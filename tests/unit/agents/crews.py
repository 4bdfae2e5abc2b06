"""The sample requests of a reference fleet, read and checked."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Literal

import msgspec

import agents
from agents import recruiting, support
from mesh.agent.definition import Agent, load
from mesh.fleet.file import FleetFile, load_fleet
from mesh.ops.rehearsal import Decision
from mesh.testing import FleetHarness, InMemoryGuard
from protocol.wire.handoff import Fact, Rule


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request should come to."""

    status: Literal["completed", "escalated", "failed"]
    path: tuple[str, ...] = ()
    """Empty where tasks go on side by side, in no fixed order."""
    answer_has: tuple[str, ...] = ()
    refused: tuple[Rule, ...] = ()


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the file."""

    id_hint: str
    text: str
    kind: Literal["ruled", "paraphrase", "ambiguous", "hard"]
    about: str
    expect: Expected
    facts: tuple[Fact, ...] = ()
    story: str = ""
    decision: Decision | None = None


def read(file: Path) -> tuple[Sample, ...]:
    """Return the samples in a file, one a line."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return tuple(msgspec.json.decode(line, type=Sample) for line in lines)


class Crew:
    """A fleet under agents/."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.home = Path(agents.__file__).parent / name

    def __str__(self) -> str:
        return self.name

    @cached_property
    def file(self) -> FleetFile:
        return load_fleet(self.home)

    @cached_property
    def agents(self) -> Mapping[str, Agent]:
        return {name: load(str(section.module)) for name, section in self.file.agents.items()}

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        return read(self.home / "requests.jsonl")

    def of_kind(self, *kinds: str) -> list[Sample]:
        return [sample for sample in self.samples if sample.kind in kinds]

    @property
    def rules(self) -> str:
        return (self.home / "rules.toml").read_text(encoding="utf-8")


class CrewWithRecords(Crew):
    """One whose agents hand a request on, over a database."""

    def __init__(self, name: str, connected: Callable[[], AbstractContextManager[Connection]]) -> None:
        super().__init__(name)
        self.connected = connected


SUPPORT = CrewWithRecords("support", support.connected)
RECRUITING = CrewWithRecords("recruiting", recruiting.connected)
RESEARCH, CODE = Crew("research"), Crew("code")
CREWS = (SUPPORT, RECRUITING)
EVERY_CREW = (*CREWS, RESEARCH, CODE)
BREAKS = {"joke": ["plan.invalid"]}
"""Samples that people get because a turn cannot be done, by code."""

_numbers = itertools.count(1)


async def walk(
    crew: Crew, text: str, facts: tuple[Fact, ...] = (), *, replies: Iterable[Any] = ()
) -> FleetHarness:
    """Submit a request and follow it until it ends, or until people have it.

    Args:
        replies: what people say to what they are asked, in order; after the last they say nothing.
    """
    guard = InMemoryGuard(crew.file.fleet, crew.file.rules, number=next(_numbers))
    return await FleetHarness(guard, crew.agents).go(text, facts=facts, replies=replies)


def disagreements(found: FleetHarness, sample: Sample) -> list[str]:
    """Return each thing that is not as a sample expects it."""
    expect = sample.expect
    pairs = {
        "broke": (found.broke, list(BREAKS.get(sample.id_hint, ()))),
        "status": (found.status, expect.status),
        "path": (tuple(found.path) if expect.path else (), expect.path),
        "refused": (found.refused, list(expect.refused)),
    }
    wrong = [
        f"{name}: {was!r}, expected {should!r}" for name, (was, should) in pairs.items() if was != should
    ]
    answer = str(found.answer)
    lacking = [part for part in expect.answer_has if part.casefold() not in answer.casefold()]
    return wrong + [f"answer: {answer!r}, expected {part!r} in it" for part in lacking]
