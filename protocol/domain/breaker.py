"""The circuit breaker of an agent: one that failed too often lately gets no work for a while.

*Closed*: work is admitted, and failed turns are counted. `failures` different turns that failed within
`window_s` open it. *Open*: nothing is admitted for `open_s`. Then one handoff is let through on trial
(*half open*) while all others are refused as before. If the trial's turn fails the breaker opens anew; if
it comes to a move the breaker closes; if nothing is heard of it for `trial_s`, another may try.

It counts turns, not rounds: a request that no agent could bear fails again and again, and is one turn
all the same. It counts what speaks of the *agent* and not of the request, as breakers elsewhere leave
out what is the caller's own fault (Nygard, "Release It!"; resilience4j's ignored exceptions): see
`speaks_of_the_agent`. What is neither a success nor such a failure changes nothing. A turn that was
under way when its agent's breaker opened goes on, with its retries; it is not counted either way.

The state of each agent is one entry of CONF, which guards change by compare-and-set. They may lose a count,
which harms nothing.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from protocol.domain.ledger import Ledger
from protocol.domain.tasks import opening_cause
from protocol.domain.turns import TurnState
from protocol.wire import events
from protocol.wire.commands import Failure
from protocol.wire.config import BreakerEntry, BreakerRules, BreakerState, FailedTurn, Trial
from protocol.wire.events import AnyEvent
from protocol.wire.ids import HUMAN, AgentName, Cause, TurnId, event_id, proposal_id

AGENTS_OWN = ("crash_loop", "journal_mismatch")
"""Permanent failures that no other request would have fared better with."""
_OPENERS = ("request.opened", "handoff.admitted")
MOST_AT_ONCE = 64
"""Tasks of one plan that are known as a trial."""


class Signal(NamedTuple):
    """What an event says of an agent. Of a human there is no breaker."""

    agent: AgentName
    how: Literal["failed", "worked", "given_back"]
    """Its turn failed by its own fault, came to a move, or neither: then a trial is given back."""
    whose: str
    """The turn; of a trial that was refused, its cause."""


class Permit(NamedTuple):
    """What a verdict rests on."""

    state: BreakerState
    since: int | None = None
    """UTC µs since when it is open."""
    until: int | None = None
    """UTC µs from which on a handoff may be tried."""
    write: BreakerEntry | None = None
    """The entry to write first, by compare-and-set: the guard that succeeds has the trial."""


CLOSED = BreakerEntry()


def speaks_of_the_agent(error: Failure) -> bool:
    """Return True if a failure counts.

    A failure that may pass (`permanent` is false) does: a bug, a tool or model that does not answer, a round
    that took too long. Of permanent failures only `AGENTS_OWN` do. Other failures are about this one request:
    its deadline, its budget, a forbidden action, or a case that the agent calls hopeless. An agent that
    nobody serves (`unattended`) does not fail: work waits for it.
    """
    return not error.permanent or error.code in AGENTS_OWN


def asked(entry: BreakerEntry, rules: BreakerRules, now: int, cause: str) -> Permit:
    """Return the state by which the message `cause` is judged at `now`.

    The same message asked again, after a crash say, has the trial that it had.
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
    """Return the entry after a count; None if that changes nothing."""
    tries = entry.trial is not None and _opened(entry.trial, count.whose)
    match count.how:
        case "failed" if not rules.failures or entry.state == "open":
            return None
        case "failed" if entry.state == "half_open":
            return BreakerEntry(state="open", opened_at=now) if tries else None
        case "failed":
            earliest = now - _us(rules.window_s)
            others = (one for one in entry.failures if one.at > earliest and one.turn != count.whose)
            failures = (*others, FailedTurn(TurnId(count.whose), now))
            if len(failures) >= rules.failures:
                return BreakerEntry(state="open", opened_at=now)
            return BreakerEntry(failures=failures)
        case "worked":
            return CLOSED if tries else None
        case "given_back":
            had = entry.trial is not None and entry.trial.cause == count.whose
            return msgspec.structs.replace(entry, trial=None) if tries or had else None


def _opened(trial: Trial, turn: str) -> bool:
    """Return True if the trial's message, or plan, opened `turn`: a turn's id is derived from its cause."""
    openers = (*((opener, 0) for opener in _OPENERS), *(("task.opened", at) for at in range(MOST_AT_ONCE)))
    return any(event_id(trial.cause, opener, at) == turn for opener, at in openers)


def _us(seconds: float) -> int:
    return int(seconds * 1e6)


# --- what an event says of agents ------------------------------------------------------------------


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
) -> Iterator[Signal]:
    """Yield what an event, which is in the ledger, says of the agents that it is about.

    Args:
        moved: the turn whose move it answers.
        over: the turns that it ended from outside.
    """
    kind = type(event)
    if type(event) is events.TurnFailed:
        how: Literal["failed", "given_back"] = "failed" if speaks_of_the_agent(event.error) else "given_back"
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
            yield Signal(one.entry.name, "given_back", opening_cause(event.request, lead, event.n))
