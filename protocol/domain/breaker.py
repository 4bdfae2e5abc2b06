"""The circuit breaker of an agent: after too many recent failures it gets no work for a while.

*Closed*: work is admitted and failed turns are counted. `failures` different turns that fail within
`window_s` open it. *Open*: nothing is admitted for `open_s`. Then one handoff is let through on trial (*half
open*), while all others are still refused. If the trial's turn fails, the breaker opens again. If the turn
makes a move, the breaker closes. If there is no result within `trial_s`, another handoff may be tried.

It counts turns, not rounds: a request that no agent can handle fails repeatedly, but is still one turn. It
counts failures of the *agent*, not of the request, just as other breakers ignore errors of the caller
(Nygard, "Release It!"; resilience4j's ignored exceptions): see `is_agents_fault`. Anything else changes
nothing. A turn that was running when its agent's breaker opened goes on, with its retries, and does not count
either way.

The state of each agent is one entry of CONF, which guards change by compare-and-set. Losing a count does no
harm.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from protocol.domain.ledger import Ledger
from protocol.domain.tasks import opening_cause
from protocol.domain.turns import TurnState, fallback_cause
from protocol.wire import events
from protocol.wire.commands import Failure
from protocol.wire.config import BreakerEntry, BreakerRules, BreakerState, FailedTurn, Trial
from protocol.wire.events import AnyEvent
from protocol.wire.ids import HUMAN, AgentName, Cause, TurnId, event_id, proposal_id
from protocol.wire.moves import Transfer

AGENTS_OWN = ("crash_loop", "journal_mismatch")
"""Permanent failures that would have happened to any other request, too."""
_OPENERS = ("request.opened", "handoff.admitted")
MOST_AT_ONCE = 64
"""Most tasks of one plan that can be recognised as a trial."""


class Signal(NamedTuple):
    """What an event tells about an agent. People have no breaker."""

    agent: AgentName
    how: Literal["failed", "worked", "given_back"]
    """Its turn failed by its own fault, made a move, or neither; in the last case a trial is given back."""
    subject: str
    """The turn; for a refused trial, its cause."""


class Permit(NamedTuple):
    """The state of a breaker for one verdict."""

    state: BreakerState
    since: int | None = None
    """UTC µs at which it opened."""
    until: int | None = None
    """UTC µs from which on a handoff may be let through on trial."""
    write: BreakerEntry | None = None
    """The entry to write first, by compare-and-set. The guard that succeeds gets the trial."""


CLOSED = BreakerEntry()


def is_agents_fault(error: Failure) -> bool:
    """Return True if a failure counts against the agent.

    Transient failures do (`permanent` is false): a bug, a tool or model that does not answer, a round that
    took too long. Of the permanent ones, only `AGENTS_OWN` do. The others concern this request alone: its
    deadline, its budget, a forbidden action, or a case that the agent calls hopeless. An agent without any
    instance (`unattended`) does not fail: work waits for it.
    """
    return not error.permanent or error.code in AGENTS_OWN


def asked(entry: BreakerEntry, rules: BreakerRules, now: int, cause: str) -> Permit:
    """Return the permit for the message `cause` at `now` (UTC µs).

    A message that is asked about again, for example after a crash, keeps its trial.
    """
    if entry.state == "closed":
        return Permit("closed")
    if entry.opened_at is None and entry.state == "open":
        return Permit("open")
    if not rules.failures:
        return Permit("closed")
    since, trial = entry.opened_at or 0, entry.trial
    if entry.state == "open":
        until = since + _us(rules.open_s)
    elif trial is not None:
        if trial.cause == cause:
            return Permit("half_open", since)
        until = trial.since + _us(rules.trial_s)
    else:
        until = now
    if now < until:
        return Permit("open", since, until)
    tried = msgspec.structs.replace(entry, state="half_open", trial=Trial(Cause(cause), now))
    return Permit("half_open", since, None, tried)


def counted(entry: BreakerEntry, rules: BreakerRules, count: Signal, now: int) -> BreakerEntry | None:
    """Return the entry after a signal; None if it changes nothing."""
    tries = entry.trial is not None and _opened(entry.trial, count.subject)
    match count.how:
        case "failed" if not rules.failures or entry.state == "open":
            return None
        case "failed" if entry.state == "half_open":
            return BreakerEntry(state="open", opened_at=now) if tries else None
        case "failed":
            earliest = now - _us(rules.window_s)
            others = (old for old in entry.failures if old.at > earliest and old.turn != count.subject)
            failures = (*others, FailedTurn(TurnId(count.subject), now))
            if len(failures) >= rules.failures:
                return BreakerEntry(state="open", opened_at=now)
            return BreakerEntry(failures=failures)
        case "worked":
            return CLOSED if tries else None
        case "given_back":
            had = entry.trial is not None and entry.trial.cause == count.subject
            return msgspec.structs.replace(entry, trial=None) if tries or had else None


def _opened(trial: Trial, turn: str) -> bool:
    """Return True if the trial's message, or plan, opened `turn`. A turn's id is derived from its cause."""
    openers = (*((opener, 0) for opener in _OPENERS), *(("task.opened", at) for at in range(MOST_AT_ONCE)))
    return any(event_id(trial.cause, opener, at) == turn for opener, at in openers)


def _us(seconds: float) -> int:
    return int(seconds * 1e6)


# --- what an event tells about agents --------------------------------------------------------------


_REFUSALS = frozenset({events.MoveRefused, events.RequestRefused})
_FALLS_BACK = frozenset({events.HandoffAdmitted, events.EscalationRaised})
_TRIALS = frozenset({*_REFUSALS, *_FALLS_BACK, events.TurnDelegated, events.TaskFailed})
"""Events that may free a breaker's trial for another handoff."""
_NO_MOVES = frozenset({events.MoveDeferred, events.TurnFailed, events.EffectDoubted})
"""Events that answer a proposal without a move, or do not answer it yet."""


def moved_by(event: AnyEvent) -> TurnId | None:
    """Return the turn whose own move an event answers; None if it answers no move."""
    if type(event) in _NO_MOVES or event.cause != str(proposal_id(event.request, event.turn, event.round)):
        return None
    return event.turn


def counts(
    ledger: Ledger, event: AnyEvent, moved: TurnId | None, over: Iterable[TurnState]
) -> Iterator[Signal]:
    """Yield what an event tells about agents. The ledger must already contain the event.

    Args:
        moved: the turn whose move it answers.
        over: the turns that it ended from outside.
    """
    kind = type(event)
    if type(event) is events.TurnFailed:
        how: Literal["failed", "given_back"] = "failed" if is_agents_fault(event.error) else "given_back"
        yield Signal(ledger.turns[event.turn].agent, how, event.turn)
        return
    if kind in _REFUSALS:
        grounds = ledger.grounds_of(event)
        if grounds is not None and grounds.breaker == "half_open" and grounds.target is not None:
            yield Signal(grounds.target.name, "given_back", event.cause)
    if kind in _TRIALS:
        yield from _trials_given_back(ledger, event)
    if moved is not None:
        yield Signal(ledger.turns[moved].agent, "worked", moved)
    for turn in over:
        if turn.agent != HUMAN:
            yield Signal(turn.agent, "given_back", turn.id)


def _trials_given_back(ledger: Ledger, event: AnyEvent) -> Iterator[Signal]:
    """Yield the trials of candidates that a plan, or what falls back, gives nothing after all."""
    grounds = event.grounds
    tried = () if grounds is None else [each for each in grounds.candidates if each.breaker == "half_open"]
    if not tried:
        return
    given, trial = set[AgentName](), opening_cause(event.request, event.turn, event.n)
    if type(event) in _FALLS_BACK:
        given = {event.to}
        by_move = moved_by(event) is not None
        trial = event.cause if by_move else fallback_cause(event.request, ledger.turns[event.turn])
    elif isinstance(event, events.MoveRefused) and isinstance(event.move, Transfer):
        trial = event.cause
    elif isinstance(event, events.TurnDelegated):
        given = {planned.agent for planned in event.tasks}
    elif isinstance(event, events.TaskFailed):
        task = ledger.task_of(event.turn)
        if task is not None:
            trial = opening_cause(event.request, task.lead, event.n)
            given = {task.worker.entry.name} if task.worker is not None and task.is_open else given
    for one in tried:
        if one.entry.name not in given:
            yield Signal(one.entry.name, "given_back", trial)
