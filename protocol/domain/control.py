"""The verdict on a control message, and the way back from the event to the message.

No rule applies: an order becomes an event. Admission has already checked that the sender may give it.
"""

from msgspec.structs import replace

from protocol.domain import budget, people
from protocol.domain.admission import Rejected
from protocol.domain.carried import Carried, added, merge
from protocol.domain.envelope import Draft, World
from protocol.domain.ledger import Ledger
from protocol.domain.submit import over_quota, stale_id
from protocol.domain.swarm import rejection_of_post
from protocol.domain.turns import TurnState, next_round, remembered
from protocol.wire import commands, events, moves
from protocol.wire.commands import Command, Control, Resolve
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Handoff
from protocol.wire.ids import HUMAN, NOBODY, AgentName

ASKED = "asked"
"""Reason of an escalation that a turn's own move asked for."""


def resolves_to(ledger: Ledger, control: Resolve) -> AgentName | None:
    """Return the agent that a resolution gives the work to; None if it answers the request."""
    if control.complete:
        return None
    ended = ledger.turns[control.turn].instead_of
    if control.to is not None and not control.again:
        return control.to
    return None if ended is None else ledger.turns[ended].agent


def rejection_of(ledger: Ledger, command: Command, world: World) -> Rejected | None:
    """Return a rejection that depends on the world: a stale id, a quota, an unknown target; else None."""
    control = command.what
    if type(control) is commands.Submit:
        return stale_id(command, world) or over_quota(command, world.use)
    if type(control) is commands.FactsPost:
        if ledger.waits_for_thaw(command.cause):
            return None
        return rejection_of_post(ledger, control, ledger.policy.max_handoff_bytes)
    if type(control) is not Resolve or control.complete:
        return None
    target = resolves_to(ledger, control)
    if target is None or target == HUMAN or world.grounds.target is None:
        return Rejected("unknown_agent", f"the work cannot go to {target}: not an agent of the fleet")
    return None


def decide_control(ledger: Ledger, command: Command, control: Control, world: World) -> AnyEvent:
    """Return the event that a control message leads to."""
    draft, sender, by = Draft(ledger, world, command.cause), command.sender, control.by or command.sender
    client = str(ledger.client)
    match control:
        case commands.Cancel(reason=reason):
            return events.RequestCancelled(
                **draft.envelope(events.RequestCancelled, client),
                by=by,
                sender=sender,
                control=control.id,
                reason=reason,
                digest=ledger.submit_digest,
                **draft.told(),
            )
        case commands.Freeze(reason=reason):
            # If our clock is behind the bus's, a freeze must not begin in the future.
            since = command.stored if 0 < command.stored < world.now else None
            return events.RequestFrozen(
                **draft.envelope(events.RequestFrozen, NOBODY),
                by=by,
                sender=sender,
                control=control.id,
                reason=reason,
                since=since,
            )
        case commands.Thaw(reason=reason):
            return events.RequestThawed(
                **draft.envelope(events.RequestThawed, NOBODY),
                by=by,
                sender=sender,
                control=control.id,
                reason=reason,
            )
        case commands.Assign(turn=turn_id, to=person):
            return events.EscalationAssigned(
                **draft.envelope(events.EscalationAssigned, NOBODY),
                turn=turn_id,
                person=person,
                by=by,
                sender=sender,
                control=control.id,
            )
        case Resolve(complete=True):
            human = ledger.turns[control.turn]
            return events.RequestCompleted(
                **draft.envelope(events.RequestCompleted, client),
                turn=human.id,
                round=human.round,
                answer=control.answer,
                by=by,
                sender=sender,
                control=control.id,
                digest=ledger.submit_digest,
                **draft.told(),
            )
        case Resolve():
            return _resolved(draft, control, sender)
        case commands.ReplyToAsk(value=value, reason=why):
            turn = people.going_on(ledger, ledger.turns[control.turn], world.now)
            past = RoundOutcome(
                round=turn.round, how="replied", reply=value, by=by, asked=turn.approval, reason=why
            )
            return events.TurnResumed(
                **draft.envelope(events.TurnResumed, turn.agent),
                turn=turn.id,
                work=next_round(turn, past),
                sender=sender,
                control=control.id,
            )
        case commands.Settle(outcome=outcome, result=result):
            turn = people.going_on(ledger, ledger.turns[control.turn], world.now)
            past = RoundOutcome(
                round=turn.round, how="settled", reply=result, settled=outcome, step=turn.doubted, by=by
            )
            return events.EffectSettled(
                **draft.envelope(events.EffectSettled, turn.agent),
                turn=turn.id,
                work=next_round(turn, past),
                outcome=outcome,
                result=result,
                by=by,
                sender=sender,
                control=control.id,
            )
        case commands.Forget():
            raise AssertionError("admission rejects it: it is about no request")


def _resolved(draft: Draft, control: Resolve, sender: AgentName) -> AnyEvent:
    """Return the event that gives an agent the work, in a new segment.

    An agent that continues its turn goes on counting its rounds, as its journal does. Journal and effect keys
    stay under the id of the first turn of the chain.
    """
    ledger, by = draft.ledger, control.by or sender
    human = people.going_on(ledger, ledger.turns[control.turn], draft.world.now)
    ended = None if human.instead_of is None else ledger.turns[human.instead_of]
    past_rounds: tuple[RoundOutcome, ...] = ()
    if control.again:
        asked = moves.Escalate(summary=human.work.handoff.summary) if human.reason == ASKED else None
        past = RoundOutcome(
            round=(ended or human).round,
            how="resolved",
            move=asked,
            reply=control.summary or None,
            by=by,
        )
        past_rounds = (*human.work.past, remembered(past))
    goes_on = ended if control.again else None
    handoff, carried = _handed_on(ledger, human, control, draft.world.now)
    opening = draft.opening(
        events.EscalationResolved,
        handoff,
        carried,
        path=(handoff.to_agent,),
        round_=0 if goes_on is None else goes_on.round + 1,
        past=past_rounds,
        continues=None if goes_on is None else goes_on.journal_id,
    )
    if isinstance(opening, events.FactsWithheld):
        return opening
    return events.EscalationResolved(
        **opening.envelope,
        work=opening.work,
        turn=human.id,
        summary=control.summary,
        again=control.again,
        grounds=draft.world.grounds,
        budget=control.budget,
        added=added(human.carried().facts, carried.facts),
        by=by,
        sender=sender,
        control=control.id,
    )


def _handed_on(ledger: Ledger, human: TurnState, control: Resolve, now: int) -> tuple[Handoff, Carried]:
    """Return the handoff that a person passes on, and all that it carries: what they hold and what they add.

    A deadline that has passed is replaced by the request's; otherwise the turn would end at once. People may
    grant more than was left: budgets limit agents only.
    """
    held = human.work.handoff
    own = held.constraints.deadline
    deadline = people.deadline_without(ledger, human, now) if own is not None and own <= now else own
    carried = merge(human.carried(), control.facts, labels=ledger.history.labels)
    ended = ledger.turns[human.instead_of] if human.instead_of is not None else None
    rest = budget.UNLIMITED if ended is None else ledger.rest(ended)
    granted = budget.grant(control.budget, rest)
    handoff = Handoff(
        move="resolve",
        from_agent=HUMAN,
        to_agent=resolves_to(ledger, control) or HUMAN,
        parent=human.id,
        summary=control.summary or held.summary,
        intent=held.intent if control.to is None or control.again else None,
        facts=carried.fact_tuple,
        artifacts=carried.artifact_tuple,
        constraints=replace(held.constraints, deadline=deadline, budget=budget.public(granted)),
    )
    return handoff, carried


# --- the way back ---------------------------------------------------------------------------------------


def control_of(ledger: Ledger, event: AnyEvent) -> Control | None:
    """Return the control message that `event` answers; None for every other event.

    Args:
        ledger: the request as it was before `event`.
    """
    match event:
        case events.RequestCancelled(control=control, by=by, reason=reason):
            return commands.Cancel(id=control, by=by, reason=reason)
        case events.RequestFrozen(control=control, by=by, reason=reason):
            return commands.Freeze(id=control, by=by, reason=reason)
        case events.RequestThawed(control=control, by=by, reason=reason):
            return commands.Thaw(id=control, by=by, reason=reason)
        case events.EscalationAssigned(control=control, by=by, turn=turn, person=person):
            return commands.Assign(id=control, by=by, turn=turn, to=person)
        case events.RequestCompleted(control=control, by=by, turn=turn, answer=answer) if control:
            return commands.Resolve(id=control, by=by, turn=turn, complete=True, answer=answer)
        case events.EscalationResolved():
            return _resolution(ledger, event)
        case events.TurnResumed(control=control, work=work, turn=turn) if control:
            past = work.past[-1]
            return commands.ReplyToAsk(
                id=control, by=past.by, turn=turn, round=past.round, value=past.reply, reason=past.reason
            )
        case events.EffectSettled(work=work):
            return commands.Settle(
                id=event.control,
                by=event.by,
                turn=event.turn,
                round=work.past[-1].round,
                outcome=event.outcome,
                result=event.result,
            )
    return None


def _resolution(ledger: Ledger, event: events.EscalationResolved) -> Control:
    human, given = ledger.turns[event.turn], event.work.handoff
    default = None if human.instead_of is None else ledger.turns[human.instead_of].agent
    by_default = given.to_agent == default and given.intent == human.work.handoff.intent
    return commands.Resolve(
        id=event.control,
        by=event.by,
        turn=event.turn,
        to=None if by_default else given.to_agent,
        again=event.again,
        summary=event.summary,
        facts=ledger.added_by(event),
        budget=event.budget,
    )
