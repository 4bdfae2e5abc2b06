"""The sample requests of a reference fleet, read and checked."""

from pathlib import Path
from typing import Literal

import msgspec

from protocol.wire.handoff import Fact, Rule


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


def read(file: Path) -> tuple[Sample, ...]:
    """Return the samples in a file, one a line."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return tuple(msgspec.json.decode(line, type=Sample) for line in lines)
