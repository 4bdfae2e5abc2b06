"""Consequences: events that follow from an earlier event or from time, without a proposal.

`due` returns the next one that is due, `next_due` when to look again. The guard that has the request in hand
appends what is due before any new decision, so that any guard finishes another's work.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from protocol.domain import budget, plans, swarm
from protocol.domain.envelope import Draft, World, due_draft
from protocol.domain.ledger import Ledger
from protocol.domain.tasks import TaskState, opening_cause
from protocol.domain.turns import TurnState, next_round, retry_at
from protocol.wire import events
from protocol.wire.commands import Command, Failure, id_of
from protocol.wire.event_parts import Grounds, RoundOutcome
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Handoff, Rule
from protocol.wire.ids import HUMAN, NOBODY, Cause, TurnId

BUDGET_EXHAUSTED = "budget_exhausted"
EVENT_TOO_LARGE = "event_too_large"
LEAST_PERIOD_US = 1_000_000
"""Looks in vain are at least a second apart, however short a policy's times are."""
_DEADLINE_HOLDS = ("working", "failed", "doubted", "delegated")
"""In which states a handoff's own deadline falls due. (No ask outlives it, and what is refused escalates.)"""
Looks = Mapping[TurnId, Grounds]
"""By turn: what a look found of who serves it."""
NOT_LOOKED: Looks = MappingProxyType({})
_NOTHING_SEEN = Grounds()

OfTask = Literal["cancel", "open", "join", "unclaim"]
Clock = Literal["timeout", "unattended", "deadline"]
"""What ends a round by the clock; also the code of its failure."""
_TIMED_OUT: dict[Clock, Failure] = {
    "timeout": Failure(code="timeout", message="the round took longer than the policy's turn_timeout_s"),
    "unattended": Failure(
        code="unattended",
        message="nobody served the agent for the policy's unattended_after_s",
        permanent=True,
    ),
    "deadline": Failure(code="deadline", message="the handoff's deadline passed", permanent=True),
}


class Wait(NamedTuple):
    """Something that comes by itself."""

    at: int
    """UTC µs; of a wait with a `period`, the earliest time at which it can fall due."""
    what: Clock | OfTask | Literal["expire", "decide", "escalate", "retry", "expire_ask", "sla"]
    turn: TurnState | None = None
    """None: the wait is the request's own expiry."""
    period: int | None = None
    """µs that the agent has to be served without a gap (`timeout`), or not at all (`unattended`)."""
    task: TaskState | None = None
    """What is called off, opened or offered in vain."""
    deferred: events.MoveDeferred | None = None
    """What is decided."""

    def falls_due(self, grounds: Grounds) -> int | None:
        """Return when (UTC µs) it falls due by what a guard knows; None while its time stands."""
        if self.period is None:
            return self.at
        if grounds.served is not (self.what == "timeout"):
            return None
        return max(self.at, (grounds.served_since or 0) + self.period)


def _waits(ledger: Ledger) -> list[Wait]:
    """Return everything that this request waits for; nothing once it is over."""
    waits: list[Wait] = []
    if not ledger.is_open:
        return waits
    if ledger.deadline is not None:
        waits.append(Wait(ledger.deadline, "expire"))
    if ledger.frozen_at is not None:
        return waits
    for deferred in ledger.deferred:
        turn, task = ledger.turns.get(deferred.turn), ledger.offers.get(deferred.turn)
        if turn is not None and turn.state == "working" and turn.round == deferred.round:
            waits.append(Wait(0, "decide", turn, deferred=deferred))
        elif task is not None and task.may_be_claimed(deferred.turn):
            waits.append(Wait(0, "decide", ledger.turns[task.lead], deferred=deferred))
    if ledger.tasks:
        waits += _waits_of_tasks(ledger)
    for turn in ledger.open.values():
        waits += _waits_of(ledger, turn)
    return waits


def _waits_of_tasks(ledger: Ledger) -> Iterator[Wait]:
    for task in plans.doomed(ledger):
        yield Wait(0, "cancel", ledger.turns.get(task.turn) or ledger.turns[task.lead], task=task)
    for task in plans.unopened(ledger):
        yield Wait(0, "open", ledger.turns[task.lead], task=task)
    for task in ledger.live.values():
        if task.state == "offered":
            yield Wait(task.claim_by, "unclaim", ledger.turns[task.lead], task=task)
    for lead in plans.joined(ledger):
        yield Wait(0, "join", lead)


def _waits_of(ledger: Ledger, turn: TurnState) -> Iterator[Wait]:
    policy = ledger.policy
    if turn.agent == HUMAN:
        if policy.escalation_sla_s is not None and turn.state == "working":
            yield Wait(turn.clock + _us(policy.escalation_sla_s), "sla", turn)
        return
    deadline = turn.frame.constraints.deadline
    if deadline is not None and deadline != ledger.deadline and turn.state in _DEADLINE_HOLDS:
        yield Wait(deadline, "deadline", turn)
    match turn.state:
        case "refused":
            yield Wait(0, "escalate", turn)
        case "failed":
            yield Wait(0, "escalate", turn) if turn.due_at is None else Wait(turn.due_at, "retry", turn)
        case "suspended" if turn.due_at is not None:
            yield Wait(turn.due_at, "expire_ask", turn)
        case "delegated" if turn.due_at is not None:
            yield Wait(turn.due_at, "join", turn)
        case "working":
            period = _us(policy.turn_timeout_s)
            yield Wait(turn.clock + period, "timeout", turn, period)
            if policy.unattended_after_s is not None:
                period = _us(policy.unattended_after_s)
                yield Wait(turn.clock + period, "unattended", turn, period)


def _us(seconds: float) -> int:
    return max(1, int(seconds * 1e6))


def next_due(ledger: Ledger, now: int, looks: Looks = NOT_LOOKED) -> int | None:
    """Return when (UTC µs) this request is to be looked at next; None once it is over.

    Args:
        looks: what the last look found of turns, where what has come hangs on who serves: when its time is
            up, by that; where its time stands, one period from `now`.
    """
    return min((_look_at(wait, now, _seen(wait, looks)) for wait in _waits(ledger)), default=None)


def _seen(wait: Wait, looks: Looks) -> Grounds:
    return looks.get(wait.turn.id, _NOTHING_SEEN) if wait.turn is not None else _NOTHING_SEEN


def _look_at(wait: Wait, now: int, grounds: Grounds) -> int:
    if wait.period is None or wait.at > now:
        return wait.at
    at = wait.falls_due(grounds)
    if at is None or at <= now:
        at = now + wait.period
    return max(at, now + LEAST_PERIOD_US)


def first_wait(ledger: Ledger) -> int | None:
    """Return the time (UTC µs) from which on something may be due; None if nothing will ever be.

    It depends on the ledger alone, and `next_due` gives the same until that time has come.
    """
    return min([wait.at for wait in _waits(ledger)], default=None)


def by_the_clock(ledger: Ledger, now: int, deciding: tuple[str, int] | None = None) -> list[TurnState]:
    """Return the turns whose round may have to end now without its holder's word.

    Who serves its agent, and whether the round has begun, has to be known for that.

    Args:
        deciding: as for `due`.
    """
    found: dict[TurnId, TurnState] = {}
    for wait in _waits(ledger):
        turn = wait.turn
        if turn is None or turn.state != "working" or wait.at > now:
            continue
        if wait.what == "deadline" or (wait.period is not None and deciding != (turn.id, turn.round)):
            found[turn.id] = turn
        elif wait.what == "cancel" and turn.task is wait.task:
            return [turn]  # it comes before all that has a time
    return list(found.values())


def due(
    ledger: Ledger, world: World, deciding: tuple[str, int] | None = None, looks: Looks | None = None
) -> AnyEvent | Command | None:
    """Return the next consequence that is due at `world.now`; None when nothing is.

    Args:
        deciding: the (turn, round) whose proposal is in hand: its own timeout is not due.
        looks: what is known of the turns that were looked at; None: the world's grounds speak of every turn.

    A `Command` is a deferred proposal whose request was thawed: it is decided like a fresh one.
    """
    came: list[tuple[int, Grounds, Wait]] = []
    for wait in _waits(ledger):
        grounds = world.grounds if looks is None else _seen(wait, looks)
        at = wait.falls_due(grounds)
        if at is not None:
            came.append((at, grounds, wait))
    for at, grounds, wait in sorted(came, key=lambda one: one[0]):
        if at > world.now:
            return None
        if wait.period is None or wait.turn is None or deciding != (wait.turn.id, wait.turn.round):
            looked = looks is not None and wait.turn is not None and wait.turn.id in looks
            return _come(ledger, replace(world, grounds=grounds) if looked else world, wait)
    return None


def too_large(ledger: Ledger, world: World, follows: AnyEvent | Command) -> AnyEvent:
    """Return what ends a request when what follows next is more than the bus takes.

    Nobody could be told of it, neither the agent nor a person, and it would be due for ever.
    """
    about: Any  # all that follows has a turn, but for an expiry, which is never large
    opening = _opening(ledger, follows)
    if opening is not None:
        reason = "what would open the task is more than the bus takes"
        return plans.never_opened(ledger, world, opening, EVENT_TOO_LARGE, reason)
    if isinstance(follows, Command):
        about, what = follows.what, "the verdict on a deferred proposal"
    else:
        about, what = follows, f"the next event, {events.type_of(follows)},"
    reason = f"{what} is more than the bus takes"
    return _given_up(ledger, world, ledger.turns[about.turn], EVENT_TOO_LARGE, reason)


def _opening(ledger: Ledger, follows: AnyEvent | Command) -> TaskState | None:
    """Return the task that what follows was to open, or to keep back facts for; None if it was not."""
    if isinstance(follows, events.TaskOffered):
        return ledger.turns[follows.lead].tasks[follows.name]
    if not isinstance(follows, events.TaskOpened | events.FactsWithheld):
        return None
    return next(
        (
            task
            for task in plans.unopened(ledger)
            if opening_cause(follows.request, task.lead, task.since_n) == follows.cause
        ),
        None,
    )


def _come(ledger: Ledger, world: World, wait: Wait) -> AnyEvent | Command:
    """Return what follows from a wait whose time has come."""
    turn = wait.turn
    if turn is None:
        draft = _draft(events.RequestExpired, ledger, world, None)
        return draft.event(events.RequestExpired, str(ledger.client), deadline=ledger.deadline)
    match wait.what:
        case "cancel" if wait.task is not None:
            return plans.cancelled(ledger, world, wait.task)
        case "open" if wait.task is not None and wait.task.is_offered:
            return swarm.offered(ledger, world, wait.task)
        case "open" if wait.task is not None:
            return plans.opened(ledger, world, wait.task)
        case "unclaim" if wait.task is not None:
            return swarm.unclaimed(ledger, world, wait.task)
        case "join":
            return plans.resumed(ledger, world, turn)
        case "decide" if wait.deferred is not None:
            waiting = wait.deferred
            cause = Cause(id_of(waiting.request, waiting.proposal, waiting.sender))
            return Command(waiting.request, waiting.sender, waiting.proposal, cause, role="agent")
        case "retry":
            draft = _draft(events.TurnRetried, ledger, world, turn)
            return draft.event(events.TurnRetried, turn.agent, turn=turn.id, work=next_round(turn, None))
        case "expire_ask":
            work = next_round(turn, RoundOutcome(round=turn.round, how="expired", asked=turn.approval))
            draft = _draft(events.TurnResumed, ledger, world, turn)
            return draft.event(events.TurnResumed, turn.agent, turn=turn.id, work=work)
        case "sla":
            return _escalated(ledger, world, turn, "sla", turn.tier + 1)
        case "timeout" | "unattended" | "deadline" if turn.state == "working":
            return _timed_out(ledger, world, turn, wait.what)
        case "deadline":
            return _escalate(ledger, world, _overdue(turn))
    return _escalate(ledger, world, turn)


def _draft(kind: type[events.Event], ledger: Ledger, world: World, turn: TurnState | None) -> Draft:
    """Return the draft of a consequence: its cause is the event that the turn's state comes from."""
    about, n = ("", 0) if turn is None else (turn.id, turn.since_n)
    return due_draft(kind, ledger, world, about, n)


def is_by_the_clock(failure: Failure) -> bool:
    """Return True if a guard ended the round by the clock, so that its holder never reported its cost."""
    return failure in _TIMED_OUT.values()


def _timed_out(ledger: Ledger, world: World, turn: TurnState, what: Clock) -> AnyEvent:
    error, draft = _TIMED_OUT[what], _draft(events.TurnFailed, ledger, world, turn)
    return draft.event(
        events.TurnFailed,
        NOBODY,
        turn=turn.id,
        round=turn.round,
        error=error,
        retry_at=retry_at(turn, error, ledger.policy, world.now, draft.cause),
        grounds=world.grounds,
    )


def _overdue(turn: TurnState) -> TurnState:
    """Return a turn that waits, as it is once its deadline has passed: without a round that could be left."""
    waits = "a retry was due"
    if turn.state == "doubted":
        waits = f"the effect of step {turn.doubted} was in doubt"
    elif turn.state == "delegated":
        waits = "it waited for its tasks"
    failure = Failure(code="deadline", message=f"the handoff's deadline passed while {waits}", permanent=True)
    past = RoundOutcome(round=turn.round, how="failed", failure=failure)
    return replace(turn, reason="deadline", past=(*turn.past, past))


def _escalate(ledger: Ledger, world: World, turn: TurnState) -> AnyEvent:
    """Give a turn that has no round left to a person, or end the request where that is not to be."""
    policy, last = ledger.policy, turn.past[-1] if turn.past else None
    refusal, failure = (None, None) if last is None else (last.refusal, last.failure)
    over_budget = turn.reason == BUDGET_EXHAUSTED or (refusal is not None and refusal.rule == Rule.BUDGET)
    if turn.task is not None:
        code = BUDGET_EXHAUSTED if over_budget else turn.reason
        message = "" if failure is None else failure.message
        if refusal is not None:
            message = f"refused by the rule {refusal.rule}: {refusal.detail}"
        return plans.failed(ledger, world, turn, code, message)
    if policy.on_budget == "fail" and over_budget:
        code = BUDGET_EXHAUSTED
    elif not world.grounds.human:
        code = "no_human"
    elif ledger.escalations >= policy.max_escalations:
        code = "max_escalations"
    else:
        return _escalated(ledger, world, turn, turn.reason, 1)
    reason = turn.reason  # by its code alone: the client reads it
    if refusal is not None:
        reason = f"refused by the rule {refusal.rule}"
    elif failure is not None:
        reason = f"failed with {failure.code}"
    return _given_up(ledger, world, turn, code, reason)


def _given_up(ledger: Ledger, world: World, turn: TurnState, code: str, reason: str) -> AnyEvent:
    if turn.task is not None:
        return plans.failed(ledger, world, turn, code, reason)
    draft = _draft(events.RequestFailed, ledger, world, turn)
    said: dict[str, Any] = {"turn": turn.id, "round": turn.round, "code": code, "reason": reason}
    return draft.for_client(events.RequestFailed, **said)


def _escalated(ledger: Ledger, world: World, turn: TurnState, reason: str, tier: int) -> AnyEvent:
    """Open a person's turn with everything that is carried and everything that was tried."""
    held, constraints, giver = turn.work.handoff, turn.work.handoff.constraints, turn.work.handoff.from_agent
    if turn.agent != HUMAN:
        giver = turn.agent
        rest = ledger.rest(turn)
        constraints = replace(turn.frame.constraints, budget=budget.public(rest))
    load = turn.load()
    handoff = Handoff(
        move="escalate",
        from_agent=giver,
        to_agent=HUMAN,
        parent=turn.id,
        summary=held.summary,
        intent=held.intent,
        facts=load.fact_tuple,
        artifacts=load.artifact_tuple,
        constraints=constraints,
    )
    return _draft(events.EscalationRaised, ledger, world, turn).opening(
        events.EscalationRaised,
        handoff,
        load,
        turn.marks(),
        path=turn.segment.names,
        depth=turn.segment.depth,
        past=turn.past,
        turn=turn.id,
        round=turn.round,
        reason=reason,
        tier=tier,
        grounds=world.grounds,
    )
