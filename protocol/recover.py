"""Recovering: which message an event answered, read back from the log alone.

An admitted handoff does not repeat its proposal (it would tell its reader of what is withheld from
them). What the proposal brought and dropped is the difference between what was carried before and
after; merged with what was carried before, it gives the same handoff again.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from protocol import events
from protocol.codec import TEXT_FACT
from protocol.equality import equal
from protocol.events import AnyEvent, Past, Work
from protocol.handoff import Artifact, Constraints, Fact
from protocol.ids import AgentName
from protocol.ledger import Ledger
from protocol.messages import (
    Assign,
    Cancel,
    Complete,
    Control,
    EffectDoubted,
    Escalate,
    Freeze,
    HandBack,
    Hearing,
    Move,
    MoveProposed,
    Proposal,
    Reply,
    Resolve,
    Settle,
    Submit,
    Thaw,
    Transfer,
    TurnFailed,
)


def message_of(ledger: Ledger, event: AnyEvent) -> Hearing | None:
    """Return the message that `event` answers; None for what came by itself.

    Args:
        ledger: the request as it was before `event`.
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
) -> Hearing:
    return Hearing(event.request, sender, what, event.cause, role, digest)  # type: ignore[arg-type]


# --- what was carried after -------------------------------------------------------------------------


def _facts_after(ledger: Ledger, event: AnyEvent, work: Work) -> dict[str, Fact]:
    """Return every fact that is carried once `event` is in the log, by key."""
    pending = ledger.pending
    hidden = (
        pending.facts if pending is not None and pending.cause == event.cause else ledger.stash.facts.values()
    )
    return {fact.key: fact for fact in (*hidden, *work.handoff.facts)}


def _artifacts_after(ledger: Ledger, event: AnyEvent, work: Work) -> dict[str, Artifact]:
    pending = ledger.pending
    kept = pending is not None and pending.cause == event.cause
    hidden = pending.artifacts if kept and pending is not None else ledger.stash.artifacts.values()
    return {item.name: item for item in (*hidden, *work.handoff.artifacts)}


def _must_carry_after(ledger: Ledger, event: AnyEvent, work: Work) -> tuple[str, ...]:
    pending = ledger.pending
    kept = pending is not None and pending.cause == event.cause
    hidden = pending.must_carry if kept and pending is not None else ledger.stash.must_carry
    return tuple(sorted({*hidden, *work.handoff.constraints.must_carry}))


def _brought(before: dict[str, Fact], after: dict[str, Fact]) -> tuple[Fact, ...]:
    return tuple(fact for key, fact in after.items() if not equal(before.get(key), fact))


def _asked(ledger: Ledger, event: AnyEvent, work: Work, asked: Constraints) -> Constraints:
    return replace(asked, must_carry=_must_carry_after(ledger, event, work))


def _must_carry_asked(ledger: Ledger, event: events.HandoffAdmitted, work: Work) -> tuple[str, ...]:
    """Return the keys beyond the giver's own, which hold without being asked for."""
    own = ledger.frames[event.turn].constraints.must_carry
    return tuple(key for key in _must_carry_after(ledger, event, work) if key not in own)


# --- messages ---------------------------------------------------------------------------------------


def _submit(ledger: Ledger, event: AnyEvent) -> Submit | None:
    match event:
        case events.RequestRefused(submit=submit):
            return submit
        case events.RequestOpened(work=work):
            facts = _facts_after(ledger, event, work)
            text = facts.pop(TEXT_FACT)
            return Submit(
                text=text.value,
                to=work.handoff.to_agent,
                intent=work.handoff.intent,
                facts=tuple(facts.values()),
                artifacts=tuple(_artifacts_after(ledger, event, work).values()),
                constraints=_asked(ledger, event, work, event.asked),
                policy=event.policy.name,
                conversation=event.conversation,
                rerun_of=event.rerun_of,
            )
    return None


def _proposal(ledger: Ledger, event: AnyEvent) -> Proposal | None:
    move: Move
    match event:
        case events.TurnFailed(sender=sender) if sender is not None:
            return TurnFailed(turn=event.turn, round=event.round, error=event.error, report=event.report)
        case events.EffectDoubted():
            return EffectDoubted(turn=event.turn, round=event.round, effect=event.effect, report=event.report)
        case events.MoveDeferred(proposal=proposal):
            return proposal
        case events.HandoffAdmitted(work=work):
            move = _handoff_move(ledger, event, work)
        case events.MoveRefused(move=refused):
            move = refused
        case events.TurnSuspended(ask=ask):
            move = ask
        case events.EscalationRaised(reason="asked", work=work):
            brought = _brought(ledger.carried(), {fact.key: fact for fact in work.handoff.facts})
            move = Escalate(summary=work.handoff.summary, facts=brought)
        case events.RequestCompleted(control="", answer=answer):
            move = Complete(answer=answer)
        case events.RequestFailed(move=given_up) if event.sender is not None and given_up is not None:
            move = given_up
        case _:
            return None
    return MoveProposed(turn=event.turn, round=event.round, move=move, report=event.report)


def _handoff_move(ledger: Ledger, event: events.HandoffAdmitted, work: Work) -> Transfer | HandBack:
    before, after = ledger.carried(), _facts_after(ledger, event, work)
    had, has = ledger.carried_artifacts(), _artifacts_after(ledger, event, work)
    handoff = work.handoff
    facts = _brought(before, after)
    artifacts = tuple(item for name, item in has.items() if not equal(had.get(name), item))
    drop = tuple(key for key in before if key not in after)
    if handoff.move == "hand_back":
        return HandBack(summary=handoff.summary, facts=facts, artifacts=artifacts, drop=drop)
    return Transfer(
        to_agent=handoff.to_agent,
        summary=handoff.summary,
        intent=handoff.intent,
        facts=facts,
        artifacts=artifacts,
        drop=drop,
        constraints=replace(event.asked, must_carry=_must_carry_asked(ledger, event, work)),
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


def _last(past: Sequence[Past]) -> Past:
    return past[-1]


def _resolution(ledger: Ledger, event: events.EscalationResolved) -> Resolve:
    human = ledger.turns[event.turn]
    held = human.work.handoff
    default = None if human.instead_of is None else ledger.turns[human.instead_of].agent
    by_default = event.work.handoff.to_agent == default and event.work.handoff.intent == held.intent
    after = _facts_after(ledger, event, event.work)
    return Resolve(
        id=event.control,
        by=event.by,
        turn=event.turn,
        to=None if by_default else event.work.handoff.to_agent,
        again=event.again,
        summary=event.summary,
        facts=_brought(_by_key(held.facts), after),
        budget=event.budget,
    )


def _by_key(facts: Iterable[Fact]) -> dict[str, Fact]:
    return {fact.key: fact for fact in facts}
