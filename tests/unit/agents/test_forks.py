"""The reference fleets' requests, forked after every event: the same rest, and no effect happens again."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from mesh.errors import Impossible
from mesh.ops.fork import fork_of
from mesh.replay.rejudge import rejudge
from mesh.testing import FleetHarness, InMemoryGuard
from protocol.domain.ledger import fold
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Rule
from protocol.wire.ids import HUMAN, AgentName
from protocol.wire.records import decode_record
from tests.unit.agents.conftest import records
from tests.unit.agents.crews import EVERY_CREW, Crew, walk

__all__ = ["records"]

SAMPLES = {"support": 5, "recruiting": 5, "research": 2, "code": 2}
"""Of each fleet; a tree has many turns, and few events to fork at."""
OF_THE_PATH = {Rule.CYCLE, Rule.DEPTH, Rule.HAND_BACK, Rule.NO_RETURN}
_numbers = count(50_000)


async def forked(crew: Crew, old: FleetHarness, n: int) -> FleetHarness:
    """Return the fork of a request after event `n`, played by the same agents over their own journals."""
    fleet = replace(crew.file.fleet, operators=(AgentName("op"),))
    guard = InMemoryGuard(fleet, crew.file.rules, client="op", number=next(_numbers))
    found = FleetHarness(guard, crew.agents, keep_going=True)
    found.journals, found.store = old.journals, old.store
    guard.submit_whole(fork_of(old.guard.events, old.guard.bodies, n))
    return await found.go_on()


def effects_begun(found: FleetHarness) -> list[str]:
    """Return the steps of a request at which an effect was about to happen."""
    return [
        f"{agent} {name}"
        for agent, memory in found.journals.items()
        for (request, _, name), body in memory.steps.items()
        if request == found.guard.request and decode_record(body).kind == "intent"
    ]


def holders(happened: Sequence[AnyEvent], n: int = 0) -> list[str]:
    """Return who had the work of a request, in order: from event `n` on, or from the first who had it."""
    opened = [(event.n, event.work) for event in happened if event.opens_turn]
    now = max((place for place, _ in opened if place <= n), default=0)
    return [work.handoff.to_agent for place, work in opened if work is not None and place >= now]


def rests_on_the_path(happened: Sequence[AnyEvent], n: int) -> bool:
    """Return True if the rest after event `n` rests on how the work came there: a fork has another path.

    Its turn came back to its agent, it goes back to somebody before, or a rule looks at the path.
    """
    root = fold(happened[: n + 1]).root
    assert root is not None
    rules = {event.refusal.rule for event in happened[n + 1 :] if event.refusal is not None}
    goes_back = set(root.path[:-1]) & set(holders(happened, n)[1:])
    return bool(root.work.handoff.move == "hand_back" or goes_back or rules & OF_THE_PATH)


def nothing_goes_on(happened: Sequence[AnyEvent], n: int) -> bool:
    """Return True where an event ended the request, planned tasks, or gave the work to people."""
    then = fold(happened[: n + 1])
    return not then.is_open or then.root is None or bool(then.root.tasks) or then.root.agent == HUMAN


def end_of(found: FleetHarness) -> tuple[str, str]:
    ended = found.guard.ledger.ended
    return found.status, "" if ended is None else str(getattr(ended, "answer", ""))


@pytest.mark.parametrize("crew", EVERY_CREW, ids=str)
async def test_a_fork_after_any_event_goes_on_as_its_request_did_and_does_nothing_again(
    crew: Crew, records: Path
) -> None:
    forks = same = refused = effects = 0
    for sample in crew.of_kind("ruled")[: SAMPLES[crew.name]]:
        old = await walk(crew, sample.text, sample.facts)
        effects += len(effects_begun(old))
        for n in range(len(old.guard.events)):
            if nothing_goes_on(old.guard.events, n):
                refused += 1
                with pytest.raises(Impossible):
                    fork_of(old.guard.events, old.guard.bodies, n)
                continue
            new = await forked(crew, old, n)
            forks += 1
            assert effects_begun(new) == [], (sample, n)
            if not rests_on_the_path(old.guard.events, n):
                same += 1
                assert holders(new.guard.events) == holders(old.guard.events, n), (sample, n)
                assert end_of(new) == end_of(old), (sample, n)
            assert rejudge(new.guard.bodies).same
    assert forks >= SAMPLES[crew.name]
    assert same > forks / 2
    assert refused
    assert effects or crew.name in ("research", "code")
