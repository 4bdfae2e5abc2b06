"""The drill's own stories, played in memory: its agents' code, judged by a guard without a bus."""

import contextlib
from pathlib import Path

from mesh.testing.harness import FleetHarness
from mesh.testing.in_memory_guard import InMemoryGuard, NotDecided
from protocol.wire.commands import Submit
from protocol.wire.config import BreakerEntry
from tests.drill import agents, ledger
from tests.drill.evidence import Evidence, Submitted
from tests.drill.fleet import SHUT, drill_fleet
from tests.drill.stories import Story

FILE = drill_fleet()
AGENTS = {each.name: each for each in (agents.front, agents.back, agents.vault)}


async def play(story: Story, number: int, deeds: Path) -> Evidence:
    """Play one story to its end, or to where a person is asked; return the evidence.

    Args:
        number: tells the requests of one test apart.
        deeds: the ledger, which `ledger.VARIABLE` names.
    """
    court = InMemoryGuard(FILE.fleet, FILE.rules, breakers={SHUT: BreakerEntry(state="open")}, number=number)
    submit = Submit(
        text=story.text,
        to=story.to,  # type: ignore[arg-type]
        facts=story.all_facts,
        constraints=story.constraints,
        policy=story.policy,
    )
    said = {name: getattr(submit, name) for name in submit.__struct_fields__}
    with contextlib.suppress(LookupError, NotDecided):  # a broken guard gave it to nobody, or in circles
        await FleetHarness(court, AGENTS).go(replies=[True] * 20, **said)
    return Evidence(
        submitted=(Submitted(court.request, court.now, True, story.name, story.expected, submit),),
        bodies={court.request: court.bodies},
        steps={},
        deeds=(),
        faults=(),
        asked=[each for each in ledger.moves(deeds) if each.request == court.request],
        fleet=FILE.fleet,
    )
