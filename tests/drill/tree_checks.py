"""Checks on trees of tasks: none twice, none lost, no more spent than the root was given, and all told.

What a log says of tasks is judged by the tests' oracles, as verdicts are. What was done and paid comes from
the ledger outside, who was told from the stream of ends, and who claimed from the drill's own agent.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator

from protocol.wire import events
from protocol.wire.ids import HUMAN, proposal_id
from tests.drill.evidence import Claimed
from tests.drill.findings import Breach
from tests.drill.log_checks import ends_turn
from tests.drill.reading import Reading, Story
from tests.drill.verdicts import claims_judged
from tests.unit.protocol.oracle.swarm import SwarmOracle
from tests.unit.protocol.oracle.tree import Tree
from tests.unit.protocol.oracle.wrong import Early, Lost, Twice

UNCLAIMED = "unclaimed"
"""The code of a task that nobody claimed, as the protocol page has it."""
_TAKEN = ("busy", "claimed", "decided", "ended", "unknown_turn")
"""What the oracle says of a claim where somebody else has the task, or the claimant has another."""


def _followed(oracle: Tree | SwarmOracle, story: Story) -> list[str]:
    """Return what an oracle finds wrong, up to what it cannot follow: `verdicts_right` reports that."""
    for event in story.events:
        try:
            oracle.take(event)
        except Exception:  # a log that no guard could have written may break it anywhere
            break
    return oracle.wrong


def no_task_twice(reading: Reading) -> Iterator[Breach]:
    """A task is planned once, opened once (once more if it falls back), and comes to one result."""
    for request, story in reading.stories.items():
        for wrong in _followed(Tree(), story):
            if isinstance(wrong, Twice):
                yield Breach(promise="no_task_twice", request=request, detail=wrong)


def no_task_lost(reading: Reading) -> Iterator[Breach]:
    """Each task comes to an end of its own or its request's, and its lead is told of what it came to."""
    for request, story in reading.stories.items():
        for wrong in _followed(Tree(), story):
            if isinstance(wrong, Lost):
                yield Breach(promise="no_task_lost", request=request, detail=wrong)


def one_task_at_a_time(reading: Reading) -> Iterator[Breach]:
    """An offer goes to one agent, and an agent that claims has one open task of a lead at a time."""
    for request, story in reading.stories.items():
        with contextlib.suppress(Exception):  # as in `_followed`
            for claim in claims_judged(SwarmOracle(reading.agents), story):
                if claim.verdict == "task.opened" and claim.right in _TAKEN:
                    detail = f"event {claim.n} gives {claim.by} a task, and {claim.right} is right"
                    yield Breach(promise="one_task_at_a_time", request=request, detail=detail)


def claims_count(reading: Reading) -> Iterator[Breach]:
    """A claim that was stored before its offer's time was over is not passed over; nor is the time cut short.

    The time stands while the request is frozen. A claim counts by when the bus had stored it, whether or not
    a guard ran then. An offer goes again only when its time is over.
    """
    for claim in reading.evidence.claims:
        story = reading.stories.get(claim.request)
        limit = None if story is None else _claimable_until(reading, story, claim)
        if story is None or limit is None or claim.at > limit:
            continue
        for event in story.events:
            if isinstance(event, events.TaskFailed) and (event.turn, event.error.code) == (
                claim.offer,
                UNCLAIMED,
            ):
                early_s = (limit - claim.at) / 1e6
                detail = (
                    f"offer {claim.offer} was claimed {early_s:.1f} s before its time was over, and it failed"
                )
                yield Breach(promise="claims_count", request=claim.request, detail=detail)
    for request, story in reading.stories.items():
        for wrong in _followed(SwarmOracle(reading.agents), story):
            if isinstance(wrong, Early):
                yield Breach(promise="claims_count", request=request, detail=wrong)


def _claimable_until(reading: Reading, story: Story, claim: Claimed) -> int | None:
    """Return until when (UTC µs) a claim's offer could be claimed, by what the log says before the claim."""
    oracle = SwarmOracle(reading.agents)
    for event in story.events:
        if event.at <= claim.at:
            oracle.learn(event)
    return oracle.claimable_until(claim.offer, claim.at)


def no_tree_overspends(reading: Reading) -> Iterator[Breach]:
    """The whole tree makes no more model calls than the root was given, by the ledger outside.

    A call that a crash made twice counts once: nobody could know of the first.
    """
    for request, story in reading.stories.items():
        opened = next((each for each in story.events if isinstance(each, events.RequestOpened)), None)
        granted = any(
            isinstance(each, events.EscalationResolved) and each.budget is not None for each in story.events
        )
        if (
            opened is None
            or granted
            or not any(isinstance(each, events.TurnDelegated) for each in story.events)
        ):
            continue
        budget = opened.work.handoff.constraints.budget
        most = None if budget is None else budget.model_calls
        paid = {
            each.call for each in reading.evidence.deeds if (each.kind, each.request) == ("model", request)
        }
        if most is not None and len(paid) > most:
            detail = f"{len(paid)} model calls of {most} that the root was given"
            yield Breach(promise="no_tree_overspends", request=request, detail=detail)


def _is_end(event: events.AnyEvent) -> bool:
    return isinstance(event, events.Ended)


def every_end_told(reading: Reading) -> Iterator[Breach]:
    """Each agent whose turn ended by anything but its own move is told so, where it looks."""
    told = reading.evidence.ends
    for request, story in reading.stories.items() if told is not None else ():
        ended = any(map(_is_end, story.events))
        turns = {str(event.id): event.to for event in story.events if event.opens_turn and event.to != HUMAN}
        moved = Counter(str(event.turn) for event in story.events if ends_turn(event) and _is_own(event))
        over = {str(event.turn) for event in story.events if ends_turn(event)}
        for turn, agent in turns.items():
            is_over = ended or turn in over
            if is_over and not moved[turn] and (agent, request, turn) not in (told or ()):
                detail = f"turn {turn} of {agent} was ended, and nobody told it"
                yield Breach(promise="every_end_told", request=request, detail=detail)


def _is_own(event: events.AnyEvent) -> bool:
    return str(event.cause) == proposal_id(event.request, event.turn, event.round)
