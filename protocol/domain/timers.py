"""Consequences: what follows from an earlier event or from time, without anybody proposing it.

`due` returns the next one that is due, `next_due` when to look again. The guard that has the request in hand
appends what is due before any new decision, so that any guard finishes another's work.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from protocol.domain import budget
from protocol.domain.envelope import E, World, for_client, show, stamp
from protocol.domain.layers import merge
from protocol.domain.ledger import Ledger
from protocol.domain.turns import TurnState, next_round, retry_at
from protocol.wire import events
from protocol.wire.commands import Command, Failure, id_of
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent, Assignment, Grounds, RoundOutcome
from protocol.wire.handoff import Handoff, Rule
from protocol.wire.ids import HUMAN, NOBODY, Cause, TurnId, due_cause, event_id

TIMEOUT = "timeout"
UNATTENDED = "unattended"
DEADLINE = "deadline"
BUDGET_EXHAUSTED = "budget_exhausted"
EVENT_TOO_LARGE = "event_too_large"
LEAST_PERIOD_US = 1_000_000
"""Looks in vain are at least a second apart, however short a policy's times are."""
_DEADLINE_HOLDS = ("working", "failed", "doubted")
"""In which states a handoff's own deadline falls due. (No ask outlives it, and what is refused escalates.)"""
NOT_LOOKED = Grounds()
"""The grounds of a look that asked for nothing."""


class Wait(NamedTuple):
    """Something that comes by itself."""

    at: int
    """UTC µs; of a wait with a `period`, the earliest time at which it can fall due."""
    what: str
    turn: TurnState | None = None
    period: int | None = None
    """µs that the agent has to be served without a gap (TIMEOUT), or not at all (UNATTENDED)."""

    def falls_due(self, grounds: Grounds) -> int | None:
        """Return when (UTC µs) it falls due by what a guard knows; None while its time stands."""
        if self.period is None:
            return self.at
        if grounds.served is not (self.what == TIMEOUT):
            return None
        return max(self.at, (grounds.served_since or 0) + self.period)


def _waits(ledger: Ledger, policy: Policy) -> Iterator[Wait]:
    """Yield everything that this request waits for."""
    if ledger.deadline is not None:
        yield Wait(ledger.deadline, "expire")
    if ledger.frozen_at is not None:
        return
    for deferred in ledger.deferred:
        turn = ledger.turns[deferred.turn]
        if turn.state == "working" and turn.round == deferred.round:
            yield Wait(0, "decide", turn)
    for turn in ledger.open.values():
        yield from _waits_of(ledger, turn, policy)


def _waits_of(ledger: Ledger, turn: TurnState, policy: Policy) -> Iterator[Wait]:
    if turn.agent == HUMAN:
        if policy.escalation_sla_s is not None and turn.state == "working":
            yield Wait(turn.clock + _us(policy.escalation_sla_s), "sla", turn)
        return
    deadline = ledger.frames[turn.id].constraints.deadline
    if deadline is not None and deadline != ledger.deadline and turn.state in _DEADLINE_HOLDS:
        yield Wait(deadline, DEADLINE, turn)
    match turn.state:
        case "refused":
            yield Wait(0, "escalate", turn)
        case "failed":
            yield Wait(0, "escalate", turn) if turn.due_at is None else Wait(turn.due_at, "retry", turn)
        case "suspended" if turn.due_at is not None:
            yield Wait(turn.due_at, "expire_ask", turn)
        case "working":
            period = _us(policy.turn_timeout_s)
            yield Wait(turn.clock + period, TIMEOUT, turn, period)
            if policy.unattended_after_s is not None:
                period = _us(policy.unattended_after_s)
                yield Wait(turn.clock + period, UNATTENDED, turn, period)


def _us(seconds: float) -> int:
    return max(1, int(seconds * 1e6))


def next_due(ledger: Ledger, policy: Policy | None, now: int, grounds: Grounds = NOT_LOOKED) -> int | None:
    """Return when (UTC µs) this request is to be looked at next; None once it is over.

    Args:
        grounds: what the last look found, if what has come hangs on who serves: when its time is up, by
            that; where its time stands, one period from `now`.
    """
    if not ledger.is_open:
        return None
    waits = _waits(ledger, policy or ledger.policy)
    return min((_look_at(wait, now, grounds) for wait in waits), default=None)


def _look_at(wait: Wait, now: int, grounds: Grounds) -> int:
    if wait.period is None or wait.at > now:
        return wait.at
    at = wait.falls_due(grounds)
    if at is None or at <= now:
        at = now + wait.period
    return max(at, now + LEAST_PERIOD_US)


def first_wait(ledger: Ledger, policy: Policy | None) -> int | None:
    """Return the time (UTC µs) from which on something `is_due`; None if nothing will ever be.

    It depends on the ledger alone, and `next_due` gives the same until that time has come.
    """
    if not ledger.is_open:
        return None
    return min((wait.at for wait in _waits(ledger, policy or ledger.policy)), default=None)


def is_due(ledger: Ledger, policy: Policy | None, now: int) -> bool:
    """Return True if `due` is worth asking: some wait has come. Its time may stand all the same."""
    return ledger.is_open and any(wait.at <= now for wait in _waits(ledger, policy or ledger.policy))


def by_the_clock(
    ledger: Ledger, policy: Policy | None, now: int, deciding: tuple[str, int] | None = None
) -> TurnState | None:
    """Return the turn whose round may have to end by the clock now; None if there is none.

    Who serves its agent, and whether the round has begun, has to be known for that.

    Args:
        deciding: as for `due`.
    """
    for wait in _waits(ledger, policy or ledger.policy):
        turn = wait.turn
        if turn is None or turn.state != "working" or wait.at > now:
            continue
        if wait.what == DEADLINE or (wait.period is not None and deciding != (turn.id, turn.round)):
            return turn
    return None


def due(
    ledger: Ledger, policy: Policy | None, world: World, deciding: tuple[str, int] | None = None
) -> AnyEvent | Command | None:
    """Return the next consequence that is due at `world.now`; None when nothing is.

    Args:
        deciding: the (turn, round) whose proposal is in hand: its own timeout is not due.

    A `Command` is a deferred proposal whose request was thawed: it is decided like a fresh one.
    """
    if not ledger.is_open:
        return None
    rules = policy or ledger.policy
    came = [(at, wait) for wait in _waits(ledger, rules) if (at := wait.falls_due(world.grounds)) is not None]
    for at, wait in sorted(came, key=lambda one: one[0]):
        turn = wait.turn
        if at > world.now:
            return None
        if turn is None:
            return _expired(ledger, world)
        if wait.period is not None:
            if deciding == (turn.id, turn.round):
                continue
            return _timed_out(ledger, rules, world, turn, wait.what)
        if wait.what == "decide":
            return _deferred(ledger, turn)
        return _of_turn(ledger, rules, world, turn, wait.what)
    return None


def too_large(ledger: Ledger, world: World, follows: AnyEvent | Command) -> AnyEvent:
    """Return what ends a request when what follows next is more than the bus takes.

    Nobody could be told of it, neither the agent nor a person, and it would be due for ever.
    """
    about: Any  # all that follows has a turn, but for an expiry, which is never large
    if isinstance(follows, Command):
        about, what = follows.what, "the verdict on a deferred proposal"
    else:
        about, what = follows, f"the next event, {events.type_of(follows)},"
    reason = f"{what} is more than the bus takes"
    return _given_up(ledger, world, ledger.turns[about.turn], EVENT_TOO_LARGE, reason)


def _of_turn(ledger: Ledger, policy: Policy, world: World, turn: TurnState, what: str) -> AnyEvent:
    match what:
        case "retry":
            return _stamp(
                events.TurnRetried, ledger, world, turn, turn.agent, turn=turn.id, work=next_round(turn, None)
            )
        case "expire_ask":
            past = RoundOutcome(round=turn.round, how="expired", asked=turn.approval)
            work = next_round(turn, past)
            return _stamp(events.TurnResumed, ledger, world, turn, turn.agent, turn=turn.id, work=work)
        case "deadline" if turn.state == "working":
            return _timed_out(ledger, policy, world, turn, DEADLINE)
        case "deadline":
            return _escalate(ledger, policy, world, _overdue(turn))
        case "sla":
            return _escalated(ledger, world, turn, "sla", turn.tier + 1)
    return _escalate(ledger, policy, world, turn)


def _stamp(kind: type[E], ledger: Ledger, world: World, about: TurnState, to: str, **payload: Any) -> E:
    cause = _cause(kind, ledger, about)
    return stamp(kind, ledger, world, cause, to, str(ledger.request), **payload)


def _cause(kind: type[Any], ledger: Ledger, turn: TurnState) -> Cause:
    return due_cause(str(ledger.request), events.type_of(kind), turn.id, turn.since_n)


def _expired(ledger: Ledger, world: World) -> AnyEvent:
    cause = due_cause(str(ledger.request), events.type_of(events.RequestExpired), "", 0)
    return stamp(
        events.RequestExpired,
        ledger,
        world,
        cause,
        str(ledger.client),
        str(ledger.request),
        deadline=ledger.deadline,
    )


def _deferred(ledger: Ledger, turn: TurnState) -> Command:
    waiting = next(item for item in ledger.deferred if item.turn == turn.id)
    return Command(
        request=waiting.request,
        sender=waiting.sender,
        what=waiting.proposal,
        cause=Cause(id_of(waiting.request, waiting.proposal)),
        role="agent",
    )


_TIMED_OUT = {
    TIMEOUT: ("the round took longer than the policy's turn_timeout_s", False),
    UNATTENDED: ("nobody served the agent for the policy's unattended_after_s", True),
    DEADLINE: ("the handoff's deadline passed", True),
}


def is_by_the_clock(failure: Failure) -> bool:
    """Return True if a guard ended the round by the clock, so that its holder never reported its cost."""
    known = _TIMED_OUT.get(failure.code)
    return known is not None and failure == Failure(code=failure.code, message=known[0], permanent=known[1])


def _timed_out(ledger: Ledger, policy: Policy, world: World, turn: TurnState, code: str) -> AnyEvent:
    message, permanent = _TIMED_OUT[code]
    error = Failure(code=code, message=message, permanent=permanent)
    cause = _cause(events.TurnFailed, ledger, turn)
    return _stamp(
        events.TurnFailed,
        ledger,
        world,
        turn,
        NOBODY,
        turn=turn.id,
        round=turn.round,
        error=error,
        retry_at=retry_at(turn, error, policy, world.now, cause),
        grounds=world.grounds,
    )


def _overdue(turn: TurnState) -> TurnState:
    """Return a turn that waits, as it is once its deadline has passed: without a round that could be left."""
    waits = (
        f"the effect of step {turn.doubted} was in doubt" if turn.state == "doubted" else "a retry was due"
    )
    message = f"the handoff's deadline passed while {waits}"
    failure = Failure(code=DEADLINE, message=message, permanent=True)
    past = RoundOutcome(round=turn.round, how="failed", failure=failure)
    return dataclasses.replace(turn, reason=DEADLINE, past=(*turn.past, past))


def _escalate(ledger: Ledger, policy: Policy, world: World, turn: TurnState) -> AnyEvent:
    """Give a turn that has no round left to a person, or end the request where that is not to be."""
    code = None
    if policy.on_budget == "fail" and _ran_out_of_budget(turn):
        code = BUDGET_EXHAUSTED
    elif not world.grounds.human:
        code = "no_human"
    elif ledger.escalations >= policy.max_escalations:
        code = "max_escalations"
    if code is None:
        return _escalated(ledger, world, turn, turn.reason, 1)
    return _given_up(ledger, world, turn, code, _last_words(turn))


def _given_up(ledger: Ledger, world: World, turn: TurnState, code: str, reason: str) -> AnyEvent:
    return for_client(
        events.RequestFailed,
        ledger,
        world,
        _cause(events.RequestFailed, ledger, turn),
        str(ledger.client),
        str(ledger.request),
        turn=turn.id,
        round=turn.round,
        code=code,
        reason=reason,
    )


def _ran_out_of_budget(turn: TurnState) -> bool:
    """Return True if the budget left a turn without a round, by the turn's word or by a rule."""
    refusal = turn.past[-1].refusal if turn.past else None
    return turn.reason == BUDGET_EXHAUSTED or (refusal is not None and refusal.rule == Rule.BUDGET)


def _last_words(turn: TurnState) -> str:
    """Return why a turn has no round left, by its code alone: the client reads it."""
    last = turn.past[-1] if turn.past else None
    if last is not None and last.refusal is not None:
        return f"refused by the rule {last.refusal.rule}"
    if last is not None and last.failure is not None:
        return f"failed with {last.failure.code}"
    return turn.reason


def _escalated(ledger: Ledger, world: World, turn: TurnState, reason: str, tier: int) -> AnyEvent:
    """Open a person's turn with everything that is carried and everything that was tried."""
    held = turn.work.handoff
    frame = None if turn.agent == HUMAN else ledger.frames[turn.id]
    constraints = (
        held.constraints
        if frame is None
        else replace(frame.constraints, budget=budget.public(budget.left(frame.ceiling, ledger.spent)))
    )
    cause = _cause(events.EscalationRaised, ledger, turn)
    type_ = events.type_of(events.EscalationRaised)
    handoff = Handoff(
        move="escalate",
        from_agent=held.from_agent if turn.agent == HUMAN else turn.agent,
        to_agent=HUMAN,
        parent=turn.id,
        summary=held.summary,
        intent=held.intent,
        constraints=constraints,
    )
    shown = show(handoff, merge(ledger.load()), ledger.marks(), None)
    return _stamp(
        events.EscalationRaised,
        ledger,
        world,
        turn,
        HUMAN,
        turn=turn.id,
        round=turn.round,
        reason=reason,
        tier=tier,
        grounds=world.grounds,
        work=Assignment(
            turn=TurnId(event_id(cause, type_, ledger.count(cause, type_))),
            round=0,
            handoff=shown.handoff,
            path=ledger.segment.names,
            depth=ledger.segment.depth,
            past=turn.past,
            beneath=shown.beneath,
        ),
    )
