"""A sample's walk through a reference fleet, and what was not as the sample expects it."""

import itertools
from collections.abc import Iterable
from typing import Any

from mesh.testing import FleetHarness, InMemoryGuard
from protocol.wire.handoff import Fact
from tests.unit.agents.crews import Crew
from tests.unit.agents.requests import Sample

_numbers = itertools.count(1)


async def walk(
    crew: Crew, text: str, facts: tuple[Fact, ...] = (), *, replies: Iterable[Any] = ()
) -> FleetHarness:
    """Submit a request and follow it until it ends, or until people have it.

    Args:
        replies: what people say to what they are asked, in order; after the last they say nothing.
    """
    court = InMemoryGuard(crew.file.fleet, crew.file.rules, number=next(_numbers))
    return await FleetHarness(court, crew.agents).go(text, facts=facts, replies=replies)


def disagreements(found: FleetHarness, sample: Sample) -> list[str]:
    """Return each thing that is not as a sample expects it."""
    expect = sample.expect
    pairs = {
        "broke": (found.broke, []),
        "status": (found.status, expect.status),
        "path": (tuple(found.path), expect.path),
        "refused": (found.refused, list(expect.refused)),
    }
    wrong = [
        f"{name}: {was!r}, expected {should!r}" for name, (was, should) in pairs.items() if was != should
    ]
    answer = str(found.answer)
    lacking = [part for part in expect.answer_has if part not in answer]
    return wrong + [f"answer: {answer!r}, expected {part!r} in it" for part in lacking]
