"""What is compared of two verdicts on one message: neither ids nor digests, nor words."""

from protocol.wire import events
from protocol.wire.events import AnyEvent, FactsWithheld, type_of
from protocol.wire.shadow import Judgement

NOTHING = Judgement(type="nothing")
"""Where nothing would have been written."""


def verdict_of(event: AnyEvent | None) -> Judgement:
    """Return what is compared of an event."""
    if event is None:
        return NOTHING
    refusal, reason, then, withheld = event.refusal, "", "", 0
    match event:
        case events.MoveRefused(work=work):
            then = "escalation" if work is None else "round"
        case events.TurnFailed(error=error, retry_at=retry_at):
            reason, then = error.code, "escalation" if retry_at is None else "retry"
        case events.TaskFailed(error=failed):
            reason = failed.code
        case events.EscalationRaised(reason=code) | events.RequestFailed(code=code):
            reason = code
        case FactsWithheld(facts=facts, artifacts=artifacts):
            withheld = len(facts) + len(artifacts)
    rule = "" if refusal is None else str(refusal.rule)
    return Judgement(
        type=type_of(event), to=str(event.to), rule=rule, reason=reason, then=then, withheld=withheld
    )


def wanted_by(event: AnyEvent) -> str:
    """Return whom the move that an event decides would give the work; empty if nobody."""
    if isinstance(event, events.MoveRefused):
        return str(getattr(event.move, "to_agent", "") or "")
    return "" if event.work is None else str(event.work.handoff.to_agent)


def ground_of(was: Judgement, would: Judgement) -> str:
    """Return by what two verdicts differ, to count by: a rule, else a code, else a type of event."""
    return would.rule or was.rule or would.reason or was.reason or would.type


def edge_of(giver: str, to: str) -> str:
    """Return the edge of a handoff, to count by; empty if nobody would get the work."""
    return f"{giver} → {to}" if to else ""
