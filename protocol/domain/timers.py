"""Consequences: events that follow from an earlier event or from time, without a proposal.

`due` returns the next due consequence; `protocol.domain.waits` computes when that is. A guard appends what is
due before it decides anything new. So any guard finishes another guard's work.
"""

from typing import Any

from msgspec.structs import replace

from protocol.domain import budget, people, plans, swarm
from protocol.domain.envelope import Draft, World, due_draft
from protocol.domain.fallback import fallen_back, may_fall_back, usable
from protocol.domain.ledger import Ledger
from protocol.domain.tasks import TaskState
from protocol.domain.turns import TurnState, next_round, retry_at
from protocol.domain.waits import Clock, Due, Probed, next_wait
from protocol.wire import events
from protocol.wire.commands import Command, Failure, id_of
from protocol.wire.event import VERSION, Event
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.events import AnyEvent, RequestFailed, RequestOpened, type_of
from protocol.wire.handoff import Handoff, Rule
from protocol.wire.ids import HUMAN, NOBODY, AgentName, Cause, TurnId, due_cause, event_id

AGENT_REMOVED = "agent_removed"
BUDGET_EXHAUSTED = "budget_exhausted"
EVENT_TOO_LARGE = "event_too_large"
_TIMED_OUT: dict[Clock, Failure] = {
    "timeout": Failure(code="timeout", message="the round took longer than the policy's turn_timeout_s"),
    "unattended": Failure(
        code="unattended",
        message="nobody served the agent for the policy's unattended_after_s",
        permanent=True,
    ),
    "abandoned": Failure(
        code="unattended",
        message="nobody served the agent that has the task for the policy's claim_within_s",
        permanent=True,
    ),
    "removed": Failure(code=AGENT_REMOVED, message="the agent is not in the fleet any more", permanent=True),
    "deadline": Failure(code="deadline", message="the handoff's deadline passed", permanent=True),
}


def due(
    ledger: Ledger,
    world: World,
    deciding: tuple[str, int] | None = None,
    probed: Probed | None = None,
    by: int | None = None,
) -> AnyEvent | Command | None:
    """Return the next consequence that is due; None if nothing is.

    A `Command` is a deferred proposal after a thaw, which is decided like a new one. The arguments are those
    of `next_wait`.
    """
    found = next_wait(ledger, world, deciding, probed, by)
    return None if found is None else consequence(ledger, found)


def too_large(ledger: Ledger, world: World, follows: AnyEvent | Command) -> AnyEvent:
    """Return the event that ends a request or task whose next event is larger than the bus accepts.

    Neither an agent nor a person could ever get that event, and it would stay due for ever.
    """
    about: Any  # every consequence has a turn, except an expiry, which is never large
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
    """Return the task that the event was to open, or to withhold facts for; None for other events."""
    if isinstance(follows, events.TaskOffered):
        return ledger.turns[follows.lead].tasks[follows.name]
    if not isinstance(follows, events.TaskOpened | events.FactsWithheld):
        return None
    return next(plans.unopened(ledger), None)  # tasks are opened in their order, before all else that comes


def consequence(ledger: Ledger, found: Due) -> AnyEvent | Command:
    """Return what follows from a wait that fell due."""
    _, wait, world = found
    turn = wait.turn
    if turn is None:
        draft, expires_at = _draft(events.RequestExpired, ledger, world, None), people.expires_at(ledger)
        assert expires_at is not None  # it has just passed
        return events.RequestExpired(
            **draft.envelope(events.RequestExpired, str(ledger.client)),
            deadline=expires_at,
            digest=ledger.submit_digest,
            **draft.told(),
            with_people=people.has_escalation(ledger),
        )
    match wait.what:
        case "cancel" if wait.task is not None:
            return plans.cancelled(ledger, world, wait.task)
        case "open" if wait.task is not None and wait.task.is_offered:
            return swarm.offered(ledger, world, wait.task)
        case "open" if wait.task is not None:
            return plans.opened(ledger, world, wait.task)
        case "unclaim" | "unattended" if wait.task is not None:
            return swarm.unclaimed(ledger, world, wait.task, wait.what, at_deadline=wait.period is None)
        case "join":
            return plans.resumed(ledger, world, turn)
        case "decide" if wait.deferred is not None:
            waiting = wait.deferred
            cause = Cause(id_of(waiting.request, waiting.proposal, waiting.sender))
            return Command(waiting.request, waiting.sender, waiting.proposal, cause, role="agent")
        case "retry":
            draft = _draft(events.TurnRetried, ledger, world, turn)
            envelope = draft.envelope(events.TurnRetried, turn.agent)
            return events.TurnRetried(**envelope, turn=turn.id, work=next_round(turn, None))
        case "expire_ask":
            going_on = people.going_on(ledger, turn, world.now)
            past = RoundOutcome(round=turn.round, how="expired", asked=turn.approval)
            work = next_round(going_on, past)
            draft = _draft(events.TurnResumed, ledger, world, turn)
            envelope = draft.envelope(events.TurnResumed, turn.agent)
            return events.TurnResumed(**envelope, turn=turn.id, work=work)
        case "sla":
            return _escalated(ledger, world, turn, "sla", turn.tier + 1)
        case "timeout" | "unattended" | "abandoned" | "removed" | "deadline" if turn.state == "working":
            return _timed_out(ledger, world, turn, wait.what)
        case "deadline":
            return _escalate(ledger, world, _overdue(turn, found.at))
    return _escalate(ledger, world, turn)


def _draft(kind: type[Event], ledger: Ledger, world: World, turn: TurnState | None) -> Draft:
    """Return the draft of a consequence, whose cause is the event that put the turn into its state."""
    about, n = ("", 0) if turn is None else (turn.id, turn.since_n)
    return due_draft(kind, ledger, world, about, n)


def is_by_the_clock(failure: Failure) -> bool:
    """Return True if a guard ended the round itself, so that the holder never reported its cost."""
    return failure in _TIMED_OUT.values()


def _timed_out(ledger: Ledger, world: World, turn: TurnState, what: Clock) -> AnyEvent:
    error, draft = _TIMED_OUT[what], _draft(events.TurnFailed, ledger, world, turn)
    return events.TurnFailed(
        **draft.envelope(events.TurnFailed, NOBODY),
        turn=turn.id,
        round=turn.round,
        error=error,
        retry_at=retry_at(turn, error, ledger.policy, world.now, draft.cause),
        grounds=world.grounds,
    )


def _overdue(turn: TurnState, at: int) -> TurnState:
    """Return a waiting turn after its deadline, or people's, has passed: failed, with no round left.

    Args:
        at: the deadline (UTC µs).
    """
    whose = "the handoff's" if turn.frame.constraints.deadline == at else "people's"
    waits = "a retry was due"
    if turn.state == "doubted":
        waits = f"the effect of step {turn.doubted} was in doubt"
    elif turn.state == "delegated":
        waits = "it waited for its tasks"
    failure = Failure(code="deadline", message=f"{whose} deadline passed while {waits}", permanent=True)
    past = RoundOutcome(round=turn.round, how="failed", failure=failure)
    return replace(turn, reason="deadline", past=(*turn.past, past))


def _escalate(ledger: Ledger, world: World, turn: TurnState) -> AnyEvent:
    """Give a turn that has no round left to its fallback or a person; or end the request."""
    if may_fall_back(ledger, turn):
        second = usable(world.grounds.candidates, turn, turn.work.handoff.intent)
        if second is not None:
            return fallen_back(ledger, world, turn, second.entry)
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
    reason = turn.reason  # only a code, since the client reads it
    if refusal is not None:
        reason = f"refused by the rule {refusal.rule}"
    elif failure is not None:
        reason = f"failed with {failure.code}"
    return _given_up(ledger, world, turn, code, reason)


def _given_up(ledger: Ledger, world: World, turn: TurnState, code: str, reason: str) -> AnyEvent:
    if turn.task is not None:
        return plans.failed(ledger, world, turn, code, reason)
    draft = _draft(events.RequestFailed, ledger, world, turn)
    first = draft.withhold_from_client()
    if first is not None:
        return first
    return events.RequestFailed(
        **draft.envelope(events.RequestFailed, str(ledger.client)),
        turn=turn.id,
        round=turn.round,
        code=code,
        reason=reason,
        digest=ledger.submit_digest,
        **draft.told(),
    )


def _escalated(ledger: Ledger, world: World, turn: TurnState, reason: str, tier: int) -> AnyEvent:
    """Open a person's turn with everything that is carried and was tried."""
    held, constraints, giver = turn.work.handoff, turn.work.handoff.constraints, turn.work.handoff.from_agent
    if turn.agent != HUMAN:
        giver = turn.agent
        rest = ledger.rest(turn)
        constraints = replace(turn.frame.constraints, budget=budget.public(rest))
    carried = turn.carried()
    handoff = Handoff(
        move="escalate",
        from_agent=giver,
        to_agent=HUMAN,
        parent=turn.id,
        summary=held.summary,
        intent=held.intent,
        facts=carried.fact_tuple,
        artifacts=carried.artifact_tuple,
        constraints=constraints,
    )
    opening = _draft(events.EscalationRaised, ledger, world, turn).opening(
        events.EscalationRaised,
        handoff,
        carried,
        path=turn.segment.names,
        depth=turn.segment.depth,
        past=turn.past,
    )
    if isinstance(opening, events.FactsWithheld):
        return opening
    return events.EscalationRaised(
        **opening.envelope,
        work=opening.work,
        turn=turn.id,
        round=turn.round,
        reason=reason,
        tier=tier,
        grounds=world.grounds,
    )


# --- a request on which a guard itself fails -------------------------------------------------------
#
# The guard's code raised, or a verdict took too long. It would fail again on every message of the request,
# even on its cancel and its expiry. So this event is built from the first event and the head alone, and
# shares no code with what failed.


GUARD_FAILED = "guard_failed"
"""Code of this end, and of the dead letter of the message that the guard failed on."""
_REASON = "the guard itself failed on this request; its log says where"


def guard_failed(opened: RequestOpened, head: AnyEvent, prev: str, world: World) -> RequestFailed:
    """Return the event that ends a request on which a guard fails.

    Args:
        opened: the request's first event.
        head: its newest event.
        prev: the digest of the head's stored bytes.
    """
    type_ = type_of(RequestFailed)
    cause = due_cause(opened.request, GUARD_FAILED, "", head.n)
    return RequestFailed(
        v=VERSION,
        id=event_id(cause, type_, 0),
        request=opened.request,
        n=head.n + 1,
        at=max(world.now, head.at),
        cause=cause,
        prev=prev,
        salt=world.salt,
        to=AgentName(opened.client),
        trace=world.trace,
        turn=TurnId(""),
        round=0,
        code=GUARD_FAILED,
        reason=_REASON,
        digest=opened.digest,
    )


def is_guard_failed(event: AnyEvent) -> bool:
    """Return True for an event of `guard_failed`. (An agent's `fail` with the same code has a sender.)"""
    return isinstance(event, RequestFailed) and event.code == GUARD_FAILED and event.sender is None
