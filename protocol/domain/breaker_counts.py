"""What an event says of the agents that it is about: each count goes to that agent's breaker."""

from collections.abc import Iterable, Iterator
from typing import Literal

from protocol.domain.breaker import Count, speaks_of_the_agent
from protocol.domain.ledger import Ledger
from protocol.domain.tasks import opening_cause
from protocol.domain.turns import TurnState
from protocol.wire import events
from protocol.wire.events import AnyEvent
from protocol.wire.ids import HUMAN, AgentName, TurnId, proposal_id

_REFUSALS = frozenset({events.MoveRefused, events.RequestRefused})
_TRIALS = frozenset({*_REFUSALS, events.TurnDelegated, events.TaskFailed})
"""Events that may free a breaker's trial for another handoff."""
_NO_MOVES = frozenset({events.MoveDeferred, events.TurnFailed, events.EffectDoubted})
"""Events that answer a proposal which is no move, or do not answer it yet."""


def moved_by(event: AnyEvent) -> TurnId | None:
    """Return the turn whose own move an event answers; None if it answers none."""
    if type(event) in _NO_MOVES or event.cause != str(proposal_id(event.request, event.turn, event.round)):
        return None
    return event.turn


def counts(
    ledger: Ledger, event: AnyEvent, moved: TurnId | None, over: Iterable[TurnState]
) -> Iterator[Count]:
    """Yield what an event, which is in the ledger, says of the agents that it is about.

    Args:
        moved: the turn whose move it answers.
        over: the turns that it ended from outside.
    """
    kind = type(event)
    if type(event) is events.TurnFailed:
        how: Literal["failed", "given_back"] = "failed" if speaks_of_the_agent(event.error) else "given_back"
        yield Count(ledger.turns[event.turn].agent, how, event.turn)
        return
    if kind in _REFUSALS:
        grounds = ledger.grounds_of(event)
        if grounds is not None and grounds.breaker == "half_open" and grounds.target is not None:
            yield Count(grounds.target.name, "given_back", event.cause)
    if kind in _TRIALS:
        yield from _trials_given_back(ledger, event)
    if moved is not None:
        yield Count(ledger.turns[moved].agent, "worked", moved)
    for turn in over:
        if turn.agent != HUMAN:
            yield Count(turn.agent, "given_back", turn.id)


def _trials_given_back(ledger: Ledger, event: AnyEvent) -> Iterator[Count]:
    """Yield the trials of candidates that a plan, or a task that falls back, gives nothing after all."""
    grounds = event.grounds
    tried = () if grounds is None else [one for one in grounds.candidates if one.breaker == "half_open"]
    if not tried:
        return
    lead, given = event.turn, set[AgentName]()
    if isinstance(event, events.TurnDelegated):
        given = {planned.agent for planned in event.tasks}
    elif isinstance(event, events.TaskFailed):
        task = ledger.task_of(event.turn)
        if task is not None:
            lead = task.lead
            given = {task.worker.entry.name} if task.worker is not None and task.is_open else given
    for one in tried:
        if one.entry.name not in given:
            yield Count(one.entry.name, "given_back", opening_cause(event.request, lead, event.n))
