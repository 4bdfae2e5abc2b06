"""A fallback: the agent that gets another one's work, once, before a person does. The fleet file names it.

There are two ways to it, both under topology `handoff`:

* A turn has failed for good. The guard gives its work to the fallback, which takes its place on the path.
* A transfer meets an open breaker. The fallback gets it, if the same transfer to the fallback is allowed.

What happened is in the event, with the fallback as the guard found it (`Grounds.candidates`).
"""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from protocol.domain import budget
from protocol.domain.envelope import Draft, World
from protocol.domain.ledger import Ledger
from protocol.domain.turns import TurnState, fallback_cause
from protocol.wire import events
from protocol.wire.config import AgentEntry
from protocol.wire.event_parts import Candidate
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import FALLBACK, Handoff
from protocol.wire.ids import HUMAN

_FOR_PEOPLE: Final = frozenset({"deadline", "budget_exhausted"})
"""Failures that a second agent would meet, too."""


def may_fall_back(ledger: Ledger, turn: TurnState) -> bool:
    """Return True if the work of a turn without a round left may go to its agent's fallback.

    A turn that was refused too often is a person's: its moves were wrong, and it was told so. So is one with
    a budget of which it is not known what is left.
    """
    if ledger.policy.topology != "handoff" or turn.agent == HUMAN or turn.state != "failed":
        return False
    if turn.fell_back or turn.reason in _FOR_PEOPLE or turn.segment.depth >= ledger.policy.max_depth:
        return False
    rest = ledger.rest(turn)
    if rest == budget.UNLIMITED:
        return True
    unknown = turn.unaccounted and not turn.reported
    return not unknown and all(left is None or left > 0 for left in budget.amounts(rest))


def usable(candidates: Iterable[Candidate], turn: TurnState, intent: str | None) -> Candidate | None:
    """Return the fallback if it is served, takes the work, is not on the path, and its breaker lets it in."""
    for one in candidates:
        entry = one.entry
        if (
            one.served
            and one.breaker != "open"
            and entry.takes(intent)
            and entry.name not in turn.segment.names
        ):
            return one
    return None


def fallen_back(ledger: Ledger, world: World, turn: TurnState, entry: AgentEntry) -> AnyEvent:
    """Return what gives the work of a failed turn to a fallback, in its place on the path."""
    held, frame, segment = turn.work.handoff, turn.frame, turn.segment
    carried = turn.carried()
    handoff = Handoff(
        move=FALLBACK,
        from_agent=turn.agent,
        to_agent=entry.name,
        parent=turn.id,
        summary=held.summary,
        intent=held.intent,
        facts=carried.fact_tuple,
        artifacts=carried.artifact_tuple,
        constraints=replace(frame.constraints, budget=budget.public(ledger.rest(turn))),
        return_to=frame.return_to,
        no_return=frame.sealed,
    )
    opening = Draft(ledger, world, fallback_cause(str(ledger.request), turn)).opening(
        events.HandoffAdmitted,
        handoff,
        carried,
        path=(*segment.names[:-1], entry.name),
        depth=segment.depth + 1,
        seal=segment.seal,
        reader=entry,
    )
    if isinstance(opening, events.FactsWithheld):
        return opening
    return events.HandoffAdmitted(
        **opening.envelope, work=opening.work, turn=turn.id, round=turn.round, grounds=world.grounds
    )
