"""The sample requests of the support fleet, read and checked."""

from typing import Any, Literal

import msgspec

from protocol.handoff import Fact
from protocol.refusals import Rule
from tests.unit.agents.conftest import SUPPORT


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request should come to."""

    status: Literal["completed", "escalated", "failed"]
    path: tuple[str, ...]
    answer_has: tuple[str, ...] = ()
    refused: tuple[Rule, ...] = ()


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the file."""

    id_hint: str
    text: str
    kind: Literal["ruled", "paraphrase", "ambiguous"]
    about: str
    expect: Expected
    facts: tuple[Fact, ...] = ()


def samples() -> list[Sample]:
    lines = (SUPPORT / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    return [msgspec.json.decode(line, type=Sample) for line in lines]


def of_kind(*kinds: str) -> list[Any]:
    return [sample for sample in samples() if sample.kind in kinds]
