"""What a guard tells of its work: a span for each verdict and each consequence, and counts of them.

Names, ids and codes alone go into it: of a move its kind, of a refusal its rule.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from opentelemetry.trace import Span, get_current_span

from mesh.service import metrics, names, tracing
from protocol.ledger import Ledger
from protocol.standing import Late, Objection
from protocol.wire import events
from protocol.wire.commands import Control, Hearing, MoveProposed, Submit, UnknownMove
from protocol.wire.events import AnyEvent, type_of

_ENDED = {
    events.RequestRefused: "refused",
    events.RequestCompleted: "completed",
    events.RequestFailed: "failed",
    events.RequestExpired: "expired",
    events.RequestCancelled: "cancelled",
}
_VERDICTS: Mapping[type, str] = {
    Late: "late",
    Objection: "objected",
    events.MoveRefused: "refused",
    events.RequestRefused: "refused",
    events.MoveDeferred: "deferred",
    events.TurnFailed: "recorded",
    events.EffectDoubted: "recorded",
}
Ruled = AnyEvent | Late | Objection
_CONSUMES = {names.SYSTEM: names.NATS, names.MESSAGING_OPERATION: names.PROCESS}
_TEMPLATES = {
    names.VERDICT: "mesh.prop.{sender}.{request}",
    names.CONTROL: "mesh.ctl.{sender}.{request}",
    names.CONSEQUENCE: "mesh.timer.fire.{partition}.{request}",
}


def verdict(hearing: Hearing, trace: str, came: str) -> AbstractContextManager[Span]:
    """Open the span of a verdict.

    Args:
        trace: `traceparent` of its parent.
        came: that which the message brought; the span is linked to it.
    """
    if not tracing.traced():
        return tracing.span(names.VERDICT)
    what = hearing.what
    name = names.CONTROL if isinstance(what, Control) else names.VERDICT
    said: dict[str, str | int] = {
        **_about(name, hearing.request),
        names.FROM: hearing.sender,
        names.MOVE: _asked(hearing),
    }
    for field, attribute in (("turn", names.TURN), ("round", names.ROUND)):
        if (value := getattr(what, field, None)) is not None:
            said[attribute] = value
    return tracing.span(name, tracing.CONSUMER, parent=trace, came=came, attributes=said)


def consequence(ledger: Ledger, follows: AnyEvent | Hearing) -> AbstractContextManager[Span]:
    """Open the span of what follows by itself; a deferred proposal's is that of its verdict."""
    if not tracing.traced() or isinstance(follows, Hearing):
        return tracing.OFF
    said = _about(names.CONSEQUENCE, follows.request)
    return tracing.span(names.CONSEQUENCE, tracing.CONSUMER, parent=ledger.trace, attributes=said)


def ruled(span: Span, hearing: Hearing, ruling: Ruled) -> None:
    """Tell what came of a message, as things look; `counted` follows once that is certain."""
    if not tracing.traced():
        return
    span.set_attribute(names.VERDICT_IS, _verdict(ruling))
    if rule := _rule(ruling):
        span.set_attribute(names.RULE, rule)
    if isinstance(ruling, Objection):
        span.set_attribute(names.OBJECTION, ruling.code)


def counted(hearing: Hearing, ruling: Ruled) -> None:
    """Count a message that was decided, came late or was objected to. Control messages are none of them."""
    if isinstance(hearing.what, Control):
        return
    sender = hearing.sender if hearing.role == "agent" else hearing.role
    labels = {names.VERDICT_IS: _verdict(ruling), names.MOVE: _asked(hearing), names.FROM: sender}
    if rule := _rule(ruling):
        labels[names.RULE] = rule
    metrics.handoffs.add(1, labels)


def appended(event: AnyEvent) -> None:
    """Tell of an event that is in the log now: the current span is what brought it about."""
    if isinstance(event, events.RequestOpened):
        metrics.opened_requests.add(1)
        metrics.open_requests.add(1)
    elif (ended := _ENDED.get(type(event))) is not None:
        metrics.ended_requests.add(1, {names.STATUS: ended})
        if not isinstance(event, events.RequestRefused):
            metrics.open_requests.add(-1)
    if not tracing.traced():
        return
    span = get_current_span()
    span.set_attributes({names.EVENT: event.id, names.EVENT_TYPE: type_of(event), names.TO: event.to})
    work = getattr(event, "work", None)
    if work is not None:
        span.set_attributes({names.DEPTH: work.depth, names.TURN: work.turn, names.ROUND: work.round})


def _about(name: str, request: str) -> dict[str, str | int]:
    return {
        **_CONSUMES,
        names.DESTINATION: _TEMPLATES[name],
        names.REQUEST: request,
        names.CONVERSATION: request,
    }


def _asked(hearing: Hearing) -> str:
    """Return what a message asks for, in one of our own words."""
    what = hearing.what
    if isinstance(what, Submit):
        return "submit"
    if isinstance(what, MoveProposed):
        return "unknown" if isinstance(what.move, UnknownMove) else str(what.move.__struct_config__.tag)
    return str(what.__struct_config__.tag)


def _verdict(ruling: Ruled) -> str:
    return _VERDICTS.get(type(ruling), "admitted")


def _rule(ruling: Ruled) -> str:
    refusal = getattr(ruling, "refusal", None)
    return "" if refusal is None else str(refusal.rule)
