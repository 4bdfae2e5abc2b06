"""What a control message does: people's and clients' words become events, judged by no rule.

Whether the sender may say it was settled before (`protocol.domain.admission`).
"""

from typing import Any

from msgspec.structs import replace

from protocol.domain import budget
from protocol.domain.admission import Rejected
from protocol.domain.envelope import E, World, place, stamp
from protocol.domain.layers import Bringer, Load, followed, merge
from protocol.domain.ledger import Ledger
from protocol.domain.submit import stale_id
from protocol.domain.turns import TurnState, next_round, remembered
from protocol.wire.commands import (
    Assign,
    Cancel,
    Command,
    Control,
    Escalate,
    Freeze,
    Reply,
    Resolve,
    Settle,
    Submit,
    Thaw,
)
from protocol.wire.events import (
    AnyEvent,
    Assignment,
    EffectSettled,
    EscalationAssigned,
    EscalationResolved,
    FactsWithheld,
    RequestCancelled,
    RequestCompleted,
    RequestFrozen,
    RequestThawed,
    RoundOutcome,
    TurnResumed,
    type_of,
)
from protocol.wire.handoff import Handoff
from protocol.wire.ids import HUMAN, NOBODY, AgentName, TurnId, event_id

ASKED = "asked"
"""The reason of an escalation that a turn's own move asked for."""


def resolves_to(ledger: Ledger, control: Resolve) -> AgentName | None:
    """Return which agent a resolution gives the work to; None for one that answers the request."""
    if control.complete:
        return None
    ended = ledger.turns[control.turn].instead_of
    if control.to is not None and not control.again:
        return control.to
    return None if ended is None else ledger.turns[ended].agent


def rejection_of(ledger: Ledger, command: Command, world: World) -> Rejected | None:
    """Return what speaks against a message that only the world can tell: a stale id, an unknown target."""
    control = command.what
    if isinstance(control, Submit):
        return stale_id(command, world)
    if not isinstance(control, Resolve) or control.complete:
        return None
    target = resolves_to(ledger, control)
    if target is None or target == HUMAN or world.grounds.target is None:
        return Rejected("unknown_agent", f"the work cannot go to {target}: not an agent of the fleet")
    return None


def decide_control(ledger: Ledger, command: Command, control: Control, world: World) -> AnyEvent:
    """Return the event that a control message brings about."""

    def event(kind: type[E], to: str, **payload: Any) -> E:
        return stamp(
            kind,
            ledger,
            world,
            command.cause,
            to,
            str(ledger.request),
            sender=command.sender,
            control=control.id,
            **payload,
        )

    by = control.by or command.sender
    match control:
        case Cancel(reason=reason):
            return event(RequestCancelled, str(ledger.client), by=by, reason=reason)
        case Freeze(reason=reason):
            return event(RequestFrozen, NOBODY, by=by, reason=reason)
        case Thaw(reason=reason):
            return event(RequestThawed, NOBODY, by=by, reason=reason)
        case Assign(turn=turn_id, to=person):
            return event(EscalationAssigned, NOBODY, turn=turn_id, person=person, by=by)
        case Resolve():
            return _resolved(ledger, command, control, world, by)
        case Reply():
            turn = ledger.turns[control.turn]
            past = RoundOutcome(
                round=turn.round, how="replied", reply=control.value, by=by, asked=turn.approval
            )
            return event(TurnResumed, turn.agent, turn=turn.id, work=next_round(turn, past))
        case Settle():
            turn = ledger.turns[control.turn]
            past = RoundOutcome(
                round=turn.round,
                how="settled",
                reply=control.result,
                settled=control.outcome,
                step=turn.doubted,
                by=by,
            )
            return event(
                EffectSettled,
                turn.agent,
                turn=turn.id,
                work=next_round(turn, past),
                outcome=control.outcome,
                result=control.result,
                by=by,
            )


def _resolved(ledger: Ledger, command: Command, control: Resolve, world: World, by: str) -> AnyEvent:
    human = ledger.turns[control.turn]
    if control.complete:
        return stamp(
            RequestCompleted,
            ledger,
            world,
            command.cause,
            str(ledger.client),
            str(ledger.request),
            turn=human.id,
            round=human.round,
            answer=control.answer,
            by=by,
            sender=command.sender,
            control=control.id,
        )
    whole, load = _handed_on(ledger, human, control, world.now)
    marks = followed(ledger.marks(), ledger.load(), load)
    placed = place(ledger, world, command.cause, whole, load, marks)
    if isinstance(placed, FactsWithheld):
        return placed
    type_ = type_of(EscalationResolved)
    turn_id = event_id(command.cause, type_, ledger.count(command.cause, type_))
    return stamp(
        EscalationResolved,
        ledger,
        world,
        command.cause,
        whole.to_agent,
        str(ledger.request),
        turn=human.id,
        work=Assignment(
            turn=TurnId(turn_id),
            round=_first_round(ledger, human, control),
            handoff=placed.handoff,
            path=(whole.to_agent,),
            depth=0,
            withheld=placed.withheld,
            past=(*human.work.past, _said_again(ledger, human, control, by)) if control.again else (),
            continues=_continued(ledger, human) if control.again else None,
            beneath=placed.beneath,
        ),
        by=by,
        sender=command.sender,
        control=control.id,
        summary=control.summary,
        again=control.again,
        grounds=world.grounds,
        budget=control.budget,
    )


def _first_round(ledger: Ledger, human: TurnState, control: Resolve) -> int:
    """Return the round that a resolution opens: a continued turn counts on, as its journal does."""
    if not control.again or human.instead_of is None:
        return 0
    return ledger.turns[human.instead_of].round + 1


def _said_again(ledger: Ledger, human: TurnState, control: Resolve, by: str) -> RoundOutcome:
    """Return how the round ended that a person lets go on; with the move, if it had asked for the person."""
    ended = ledger.turns[human.instead_of] if human.instead_of is not None else human
    asked = Escalate(summary=human.work.handoff.summary) if human.reason == ASKED else None
    return remembered(
        RoundOutcome(round=ended.round, how="resolved", move=asked, reply=control.summary or None, by=by)
    )


def _continued(ledger: Ledger, human: TurnState) -> Any:
    """Return under whose id journal and effect keys go on: the first of a chain of continuations."""
    ended = ledger.turns[human.instead_of] if human.instead_of is not None else None
    return None if ended is None else ended.work.continues or ended.id


def _handed_on(ledger: Ledger, human: TurnState, control: Resolve, now: int) -> tuple[Handoff, Load]:
    """Return what a person gives on, and all that it carries: what they hold, and what they add.

    A deadline that has passed is not handed on, or the turn would end as it begins; the request's holds.
    People may grant more than was left: a budget limits agents.
    """
    held = human.work.handoff
    own = held.constraints.deadline
    deadline = ledger.deadline if own is not None and own <= now else own
    shown = Bringer({fact.key: fact for fact in held.facts}, {item.name: item for item in held.artifacts})
    load = merge(ledger.load(), control.facts, bringer=shown, labels=ledger.history.labels)
    frame = ledger.frames[human.instead_of] if human.instead_of is not None else None
    rest = budget.UNLIMITED if frame is None else budget.left(frame.ceiling, ledger.spent)
    granted = budget.grant(control.budget, rest)
    handoff = Handoff(
        move="resolve",
        from_agent=HUMAN,
        to_agent=resolves_to(ledger, control) or HUMAN,
        parent=human.id,
        summary=control.summary or held.summary,
        intent=held.intent if control.to is None or control.again else None,
        facts=load.fact_tuple,
        artifacts=load.artifact_tuple,
        constraints=replace(held.constraints, deadline=deadline, budget=budget.public(granted)),
    )
    return handoff, load
