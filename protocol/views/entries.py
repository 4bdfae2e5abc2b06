"""Events as entries of a timeline: who did what to whom, and with which verdict."""

from typing import Any

import msgspec

from protocol.domain.ledger import Ledger
from protocol.wire import events
from protocol.wire.event_parts import Continued
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import FALLBACK, Handoff, Refusal, Rule
from protocol.wire.ids import HUMAN

_WHY_NOT = {
    Rule.KNOWN_AGENT: "the fleet has it no more, or not for this intent",
    Rule.AGENT_AVAILABLE: "its breaker is open",
}


def _continued(continued: Continued) -> str:
    """Return how a request goes on with the agent that spoke last in its conversation."""
    spoke = f"{continued.last} spoke last in the conversation"
    if continued.why is None:
        return spoke
    return f"{spoke}, but {_WHY_NOT[continued.why]}: the entry agent gets it"


def fields_of(ledger: Ledger, event: AnyEvent) -> dict[str, Any]:
    """Return the fields of an entry that depend on the event's type."""
    match event:
        case events.RequestOpened():
            keys = {"remembered": tuple(fact.key for fact in ledger.memory)}
            given = _given("submit", event.client, event.work.handoff) | keys
            return given | ({} if event.continued is None else {"detail": _continued(event.continued)})
        case events.RequestRefused():
            text = event.submit.text.strip().partition("\n")[0]
            return _refused("submit", event.client, event.submit.to, text, event.refusal)
        case events.HandoffAdmitted(work=work) if work.handoff.move == FALLBACK:
            failed = work.handoff.from_agent
            detail = f"{failed} has no round left; its fallback gets the work, once"
            return _recorded(FALLBACK, "guard", event.to, work.handoff.summary, detail=detail)
        case events.HandoffAdmitted(instead_of=str() as closed):
            given = _given(event.work.handoff.move, event.work.handoff.from_agent, event.work.handoff)
            return given | {
                "detail": f"instead of {closed}: its breaker is open, and {event.to} is its fallback"
            }
        case events.HandoffAdmitted():
            return _given(event.work.handoff.move, event.work.handoff.from_agent, event.work.handoff)
        case events.MoveRefused(move=move):
            turn, to = ledger.turns.get(event.turn), move.to_agent
            giver = getattr(event.grounds.sender, "name", "") if turn is None else turn.agent  # none: a claim
            return _refused(move.name, giver, to, move.sentence, event.refusal)
        case events.MoveDeferred():
            detail = "the request is frozen"
            return {"move": "proposal", "from_": event.sender, "verdict": "deferred", "detail": detail}
        case events.TurnFailed(error=error):
            agent = ledger.turns[event.turn].agent
            timed_out = event.sender is None  # a guard ended the round; the agent reported nothing
            from_, to = ("guard", agent) if timed_out else (agent, None)
            return _recorded("turn_failed", from_, to, error.message, detail=error.code)
        case events.TurnRetried() | events.TurnResumed() | events.EffectSettled():
            return _next_round(event)
        case events.TurnSuspended(ask=ask):
            asker = ledger.turns[event.turn].agent
            return _recorded("ask", asker, ask.to_agent, ask.question, verdict="admitted")
        case events.EscalationRaised(reason="asked"):
            return _given("escalate", ledger.turns[event.turn].agent, event.work.handoff)
        case events.EscalationRaised(work=work):
            detail = f"{event.reason}, tier {event.tier}"
            return _recorded("escalate", "guard", HUMAN, work.handoff.summary, detail=detail)
        case events.EscalationAssigned():
            return _recorded("assign", event.by or event.sender, event.person)
        case events.EscalationResolved():
            return _recorded("resolve", event.by, event.work.handoff.to_agent, event.summary)
        case events.EffectDoubted():
            summary = f"{event.effect.action} is in doubt"
            agent, why = ledger.turns[event.turn].agent, event.effect.message or None
            return _recorded("doubt", agent, None, summary, detail=why)
        case events.RequestFrozen():
            return _recorded("freeze", event.by or event.sender, None, event.reason)
        case events.RequestThawed():
            return _recorded("thaw", event.by or event.sender, None, event.reason)
        case events.RequestCompleted():
            fields = _recorded("complete", event.by or event.sender, event.to, _text(event.answer))
            kept = ledger.kept_back(event.cause)
            fields["remembered"] = () if kept is None else tuple(fact.key for fact in kept.facts)
            return fields if event.control else fields | {"verdict": "admitted"}
        case events.RequestFailed(sender=None):
            return _recorded("fail", "guard", event.to, event.reason, detail=event.code)
        case events.RequestFailed():
            verdict = {"detail": event.code, "verdict": "admitted"}
            return _recorded("fail", event.sender, event.to, event.reason, **verdict)
        case events.RequestCancelled():
            return _recorded("cancel", event.by or event.sender, None, event.reason)
        case events.RequestExpired():
            return _recorded("expire", "guard", None)
        case events.TurnDelegated(tasks=tasks):
            names = ", ".join(planned.task.name for planned in tasks)
            return _recorded("delegate", ledger.turns[event.turn].agent, None, names, verdict="admitted")
        case events.TaskOpened(name=name, work=work):
            return _recorded("task", work.handoff.from_agent, event.to, work.handoff.summary, detail=name)
        case events.TaskOffered(name=name, offer=offer):
            detail = f"{name}, again: nobody has claimed it" if event.again else name
            return _recorded(
                "offer", offer.handoff.from_agent, event.to, offer.handoff.summary, detail=detail
            )
        case events.TaskDelivered(name=name):
            verdict = {"detail": name, "verdict": "admitted"}
            return _recorded("deliver", event.sender, _lead_of(ledger, event), event.summary, **verdict)
        case events.TaskFailed(name=name, error=error):
            detail = f"{name}: {error.code}"
            return _recorded(
                "task_failed", error.agent, _lead_of(ledger, event), error.message, detail=detail
            )
        case events.TaskCancelled(name=name):
            return _recorded("task_cancelled", _lead_of(ledger, event), None, event.why, detail=name)
        case events.FactsPosted(facts=facts):
            return _recorded("post", event.sender, None, ", ".join(fact.key for fact in facts))
        case events.FactsWithheld():
            raise AssertionError("facts.withheld has no entry: it belongs to the next event")


def _lead_of(ledger: Ledger, event: events.TaskDelivered | events.TaskFailed | events.TaskCancelled) -> str:
    task = ledger.task_of(event.turn)
    assert task is not None  # the event is about a task
    return ledger.turns[task.lead].agent


def _recorded(
    move: str, from_: str | None, to: str | None, summary: str = "", **more: str | None
) -> dict[str, Any]:
    return {"move": move, "from_": from_, "to": to, "summary": summary, **more}


def _given(move: str, from_: str, handoff: Handoff) -> dict[str, Any]:
    return _recorded(move, from_, handoff.to_agent, handoff.summary, verdict="admitted")


def _refused(move: str, from_: str, to: str | None, summary: str, refusal: Refusal) -> dict[str, Any]:
    why = {"rule": str(refusal.rule), "detail": refusal.detail, "hint": refusal.hint}
    return _recorded(move, from_, to, summary, verdict="refused", **why)


def _next_round(event: events.TurnRetried | events.TurnResumed | events.EffectSettled) -> dict[str, Any]:
    past = event.work.past[-1] if event.work.past else None
    if past is not None and past.how == "joined":
        ended = ", ".join(f"{result.name} {result.status}" for result in event.work.results)
        return _recorded("join", "guard", event.to, ended or "no task ended in time")
    sender = None if isinstance(event, events.TurnRetried) else event.sender
    if past is None or past.how not in _AGAIN:
        return _recorded("retry", sender or "guard", event.to)
    giver = past.by or sender or "guard"
    if past.how == "replied" and past.asked:
        move, words = ("approve", "approved") if past.reply is True else ("deny", "denied")
        return _recorded(move, giver, event.to, f"{words} by {giver}", detail=past.reason or None)
    text = "" if past.reply is None else _text(past.reply)
    return _recorded(_AGAIN[past.how], giver, event.to, text, detail=past.settled)


_AGAIN = {"replied": "reply", "expired": "expire", "settled": "settle"}
"""The move of an entry, by how the round before ended."""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
