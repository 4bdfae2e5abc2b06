"""Recovering: which message an event answered, read back from the log alone.

An admitted handoff does not repeat its proposal (it would tell its reader of what is withheld from
them). What the proposal brought and dropped is the difference between what was carried before and
after; merged with what was carried before, it gives the same handoff again.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from protocol.domain.layers import Marks, brought, dropped, followed
from protocol.domain.ledger import Ledger
from protocol.wire import events
from protocol.wire.commands import (
    Assign,
    Cancel,
    Command,
    Complete,
    Control,
    Escalate,
    Fail,
    Freeze,
    HandBack,
    Move,
    MoveProposed,
    Proposal,
    Reply,
    ReportFailure,
    ReportInDoubt,
    Resolve,
    Settle,
    Submit,
    Thaw,
    Transfer,
)
from protocol.wire.events import AnyEvent, Assignment, RoundOutcome
from protocol.wire.handoff import TEXT_FACT
from protocol.wire.ids import AgentName


def message_of(ledger: Ledger, event: AnyEvent) -> Command | None:
    """Return the message that `event` answers; None for what came by itself.

    Args:
        ledger: the request as it was before `event`, what was withheld for it included.
    """
    submit = _submit(ledger, event)
    if submit is not None:
        return _hearing(event, events_client(event), submit, "client", getattr(event, "digest", ""))
    proposal = _proposal(ledger, event)
    if proposal is not None:
        return _hearing(event, ledger.turns[proposal.turn].agent, proposal, "agent")
    control = _control(ledger, event)
    if control is not None:
        sender = event.sender  # type: ignore[union-attr]  # every event that a control brings about has one
        return _hearing(event, sender or AgentName(""), control, "operator")
    return None


def events_client(event: AnyEvent) -> AgentName:
    """Return who submitted, from the first event of a request."""
    assert isinstance(event, events.RequestOpened | events.RequestRefused)
    return event.client


def _hearing(
    event: AnyEvent, sender: AgentName, what: Submit | Proposal | Control, role: str, digest: str = ""
) -> Command:
    return Command(event.request, sender, what, event.cause, role, digest)  # type: ignore[arg-type]


# --- what must be carried ---------------------------------------------------------------------------


def _asked_marks(ledger: Ledger, event: events.HandoffAdmitted) -> Marks:
    """Return what must be carried beyond what had to be until then, which holds without being asked for."""
    held = followed(ledger.marks(), ledger.load(), ledger.load_after(event))
    return ledger.marks_after(event) - held


def _keys(marks: Marks) -> tuple[str, ...]:
    return tuple(sorted({key for key, _ in marks}))


# --- messages ---------------------------------------------------------------------------------------


def _submit(ledger: Ledger, event: AnyEvent) -> Submit | None:
    match event:
        case events.RequestRefused(submit=submit):
            return submit
        case events.RequestOpened(work=work):
            load = ledger.load_after(event)
            return Submit(
                text=load.facts[TEXT_FACT][0].value,
                to=work.handoff.to_agent,
                intent=work.handoff.intent,
                facts=tuple(fact for fact in load.fact_tuple if fact.key != TEXT_FACT),
                artifacts=load.artifact_tuple,
                constraints=replace(event.asked, must_carry=_keys(ledger.marks_after(event))),
                policy=event.policy.name,
                conversation=event.conversation,
                rerun_of=event.rerun_of,
            )
    return None


def _proposal(ledger: Ledger, event: AnyEvent) -> Proposal | None:
    move: Move
    match event:
        case events.TurnFailed(sender=sender) if sender is not None:
            return ReportFailure(turn=event.turn, round=event.round, error=event.error, report=event.report)
        case events.EffectDoubted():
            return ReportInDoubt(turn=event.turn, round=event.round, effect=event.effect, report=event.report)
        case events.MoveDeferred(proposal=proposal):
            return proposal
        case events.HandoffAdmitted(work=work):
            move = _handoff_move(ledger, event, work)
        case events.MoveRefused(move=refused):
            move = refused
        case events.TurnSuspended(ask=ask):
            move = ask
        case events.EscalationRaised(reason="asked", work=work):
            facts = brought(ledger.load().facts, ledger.load_after(event).facts)
            move = Escalate(summary=work.handoff.summary, facts=facts)
        case events.RequestCompleted(control="", answer=answer):
            move = Complete(answer=answer)
        case events.RequestFailed(reason=reason) if event.sender is not None:
            kept = ledger.kept_back(event.cause)
            move = Fail(reason=reason) if kept is None or kept.move is None else kept.move
        case _:
            return None
    return MoveProposed(turn=event.turn, round=event.round, move=move, report=ledger.report_of(event))


def _handoff_move(ledger: Ledger, event: events.HandoffAdmitted, work: Assignment) -> Transfer | HandBack:
    before, after = ledger.load(), ledger.load_after(event)
    handoff = work.handoff
    facts = brought(before.facts, after.facts)
    artifacts = brought(before.artifacts, after.artifacts)
    drop = dropped(before.facts, after.facts)
    if handoff.move == "hand_back":
        return HandBack(summary=handoff.summary, facts=facts, artifacts=artifacts, drop=drop)
    asked = _asked_marks(ledger, event)
    known = {fact.key for fact in (*facts, *ledger.turns[event.turn].work.handoff.facts)}
    # What was brought again as it was, by an agent that does not see it, leaves a mark alone.
    facts += tuple(after.facts[key][place] for key, place in sorted(asked) if key not in known)
    return Transfer(
        to_agent=handoff.to_agent,
        summary=handoff.summary,
        intent=handoff.intent,
        facts=facts,
        artifacts=artifacts,
        drop=drop,
        constraints=replace(event.asked, must_carry=_keys(asked)),
        return_to=handoff.return_to,
        no_return=handoff.no_return,
    )


def _control(ledger: Ledger, event: AnyEvent) -> Control | None:
    match event:
        case events.RequestCancelled():
            return Cancel(id=event.control, by=event.by, reason=event.reason)
        case events.RequestFrozen():
            return Freeze(id=event.control, by=event.by, reason=event.reason)
        case events.RequestThawed():
            return Thaw(id=event.control, by=event.by, reason=event.reason)
        case events.EscalationAssigned():
            return Assign(id=event.control, by=event.by, turn=event.turn, to=event.person)
        case events.RequestCompleted(control=control) if control:
            return Resolve(id=control, by=event.by, turn=event.turn, complete=True, answer=event.answer)
        case events.EscalationResolved():
            return _resolution(ledger, event)
        case events.TurnResumed(control=control, work=work) if control:
            past = _last(work.past)
            return Reply(id=control, by=past.by, turn=event.turn, round=past.round, value=past.reply)
        case events.EffectSettled(work=work):
            return Settle(
                id=event.control,
                by=event.by,
                turn=event.turn,
                round=_last(work.past).round,
                outcome=event.outcome,
                result=event.result,
            )
    return None


def _last(past: Sequence[RoundOutcome]) -> RoundOutcome:
    return past[-1]


def _resolution(ledger: Ledger, event: events.EscalationResolved) -> Resolve:
    human = ledger.turns[event.turn]
    held = human.work.handoff
    default = None if human.instead_of is None else ledger.turns[human.instead_of].agent
    by_default = event.work.handoff.to_agent == default and event.work.handoff.intent == held.intent
    return Resolve(
        id=event.control,
        by=event.by,
        turn=event.turn,
        to=None if by_default else event.work.handoff.to_agent,
        again=event.again,
        summary=event.summary,
        facts=brought(ledger.load().facts, ledger.load_after(event).facts),
        budget=event.budget,
    )
