"""What was asked for, as the log records it: the message that an event answered.

An event says what its move brought and dropped by name. The facts stand in what it hands over, or in the
`facts.withheld` before it.
"""

from protocol.domain.ledger import Ledger
from protocol.domain.memory import recalled_for
from protocol.wire import commands, events
from protocol.wire.commands import Command, Control, Move, Proposal, Submit
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import TEXT_FACT, Fact
from protocol.wire.ids import AgentName, claim_id


def message_of(ledger: Ledger, event: AnyEvent) -> Command | None:
    """Return the message that `event` answers; None for what came by itself.

    Args:
        ledger: the request as it was before `event`, what was withheld for it included.
    """
    if isinstance(event, events.RequestOpened | events.RequestRefused):
        submit = event.submit if isinstance(event, events.RequestRefused) else _submit(ledger, event)
        return Command(event.request, event.client, submit, event.cause, "client", event.digest)
    proposal = _proposal(ledger, event)
    if proposal is not None:
        sender = _proposer(ledger, event, proposal)
        return Command(event.request, sender, proposal, event.cause, "agent")
    control = _control(ledger, event)
    if control is not None:
        sender = event.sender or AgentName("")
        stored = (event.since or 0) if isinstance(event, events.RequestFrozen) else 0
        return Command(event.request, sender, control, event.cause, "operator", stored=stored)
    return None


def _proposer(ledger: Ledger, event: AnyEvent, proposal: Proposal) -> AgentName:
    if not isinstance(proposal, commands.OfferClaimed):
        return ledger.turns[proposal.turn].agent
    if isinstance(event, events.MoveDeferred):
        return event.sender
    entry = None if event.grounds is None else event.grounds.sender
    if entry is not None:
        return entry.name
    # Refused, for its claimant had left the fleet. Only the cause proves the name in the refusal.
    name = "" if event.refusal is None else str(event.refusal.numbers.get("agent", ""))
    proven = str(event.cause) == claim_id(event.request, proposal.turn, name)
    return AgentName(name if proven else "")


def _submit(ledger: Ledger, event: events.RequestOpened) -> Submit:
    carried, handoff = ledger.carried_after(event), event.work.handoff
    memory = recalled_for(event, ledger.kept_back(event.cause))
    own = {TEXT_FACT, *(fact.key for fact in memory)}
    return Submit(
        text=carried.facts[TEXT_FACT].value,
        to=handoff.to_agent,
        intent=handoff.intent,
        facts=tuple(fact for fact in carried.fact_tuple if fact.key not in own),
        artifacts=carried.artifact_tuple,
        constraints=event.asked,
        policy=event.policy.name,
        conversation=event.conversation,
        rerun_of=event.rerun_of,
    )


def _facts(ledger: Ledger, event: AnyEvent) -> tuple[Fact, ...]:
    """Return the facts that the move brought which `event` admits."""
    carried = ledger.carried_after(event).facts
    return tuple(carried[key] for key in event.added)


def _proposal(ledger: Ledger, event: AnyEvent) -> Proposal | None:
    move: Move
    match event:
        case events.TurnFailed(turn=turn, round=round_, error=error, report=report):
            if event.sender is None:
                return None
            return commands.ReportFailure(turn=turn, round=round_, error=error, report=report)
        case events.EffectDoubted(turn=turn, round=round_, effect=effect, report=report):
            return commands.ReportInDoubt(turn=turn, round=round_, effect=effect, report=report)
        case events.MoveDeferred(proposal=proposal):
            return proposal
        case events.MoveRefused(turn=turn) if turn in ledger.offers:
            return commands.OfferClaimed(turn=turn, round=0)
        case events.TaskOpened(lead=lead, name=name) if event.grounds is not None:
            offer = ledger.turns[lead].tasks[name].offer
            return None if offer is None else commands.OfferClaimed(turn=offer, round=0)
        case events.FactsPosted(turn=turn, round=round_, post=post, facts=facts):
            return commands.FactsPost(turn=turn, round=round_, post=post, facts=facts)
        case events.HandoffAdmitted():
            move = _handoff_move(ledger, event)
        case events.MoveRefused(move=refused):
            move = refused
        case events.TurnSuspended(ask=ask):
            move = ask
        case events.EscalationRaised(reason="asked", work=work):
            move = commands.Escalate(summary=work.handoff.summary, facts=_facts(ledger, event))
        case events.RequestCompleted(control="", answer=answer):
            kept = ledger.kept_back(event.cause)
            leaves = () if kept is None else kept.facts
            move = commands.Complete(answer=answer, remember=leaves, cancel_open=event.cancel_open)
        case events.TurnDelegated(tasks=tasks, join=join, cancel=cancel, within_s=within_s):
            asked = tuple(planned.task for planned in tasks)
            move = commands.Delegate(tasks=asked, join=join, within_s=within_s, cancel=cancel)
        case events.TaskDelivered(summary=summary, facts=facts, artifacts=artifacts):
            move = commands.Deliver(
                summary=summary, facts=facts, artifacts=artifacts, cancel_open=event.cancel_open
            )
        case events.TaskFailed(error=failed) if event.sender is not None:
            move = commands.Fail(reason=failed.message, code=failed.code)
        case events.RequestFailed(reason=reason, code=code) if event.sender is not None:
            kept = ledger.kept_back(event.cause)
            gave_up = commands.Fail(reason=reason, code=code)
            move = kept.move if kept is not None and kept.move is not None else gave_up
        case _:
            return None
    report, oversized = ledger.report_of(event), 0
    if isinstance(event, events.MoveRefused):
        oversized = event.oversized
    return commands.MoveProposed(
        turn=event.turn, round=event.round, move=move, report=report, oversized=oversized
    )


def _handoff_move(ledger: Ledger, event: events.HandoffAdmitted) -> Move:
    handoff, named = event.work.handoff, ledger.carried_after(event).artifacts
    facts, artifacts = _facts(ledger, event), tuple(named[name] for name in event.artifacts)
    if handoff.move == "hand_back":
        return commands.HandBack(
            summary=handoff.summary, facts=facts, artifacts=artifacts, drop=event.dropped
        )
    return commands.Transfer(
        to_agent=handoff.to_agent,
        summary=handoff.summary,
        intent=handoff.intent,
        facts=facts,
        artifacts=artifacts,
        drop=event.dropped,
        constraints=event.asked,
        return_to=handoff.return_to,
        no_return=handoff.no_return,
    )


def _control(ledger: Ledger, event: AnyEvent) -> Control | None:
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
        facts=_facts(ledger, event),
        budget=event.budget,
    )
