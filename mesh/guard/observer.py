"""What a guard tells of its work: a span for each verdict and each consequence, and counts of them.

Names, ids and codes alone go into it: of a move its kind, of a refusal its rule.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

from msgspec.structs import replace
from opentelemetry.trace import Span, get_current_span

from mesh.service import telemetry, tracing
from protocol.domain.admission import Late, Rejected
from protocol.domain.decider import Append, Appended, Decided, MeshFrozen, NeedVerdictContext, Outcome, Steps
from protocol.domain.envelope import trace_of
from protocol.domain.ledger import Ledger
from protocol.wire import events
from protocol.wire.commands import Command, Control, MoveProposed, Submit, UnknownMove
from protocol.wire.events import AnyEvent, type_of

T = TypeVar("T")
_ENDED = {
    events.RequestRefused: "refused",
    events.RequestCompleted: "completed",
    events.RequestFailed: "failed",
    events.RequestExpired: "expired",
    events.RequestCancelled: "cancelled",
}
_VERDICTS: Mapping[type, str] = {
    Late: "late",
    Rejected: "objected",
    events.MoveRefused: "refused",
    events.RequestRefused: "refused",
    events.MoveDeferred: "deferred",
    events.TurnFailed: "recorded",
    events.EffectDoubted: "recorded",
}
Ruled = AnyEvent | Late | Rejected
_CONSUMES = {tracing.SYSTEM: tracing.NATS, tracing.MESSAGING_OPERATION: tracing.PROCESS}
_TEMPLATES = {
    tracing.VERDICT: "mesh.prop.{sender}.{request}",
    tracing.CONTROL: "mesh.ctl.{sender}.{request}",
    tracing.CONSEQUENCE: "mesh.timer.fire.{partition}.{request}",
}


def observed(steps: Steps[T], ledger: Ledger, handled: Command | None) -> Steps[T]:
    """Pass all steps on: each verdict and each consequence is a span of its request's trace.

    Args:
        ledger: what the steps decide on.
        handled: the command that they handle; None if a timer fired.
    """
    said: Any = None
    deciding: Command | None = None
    following = False  # from what is kept back for a consequence up to it: one span is both's
    with ExitStack() as spans:
        while True:
            try:
                step = steps.send(said)
            except StopIteration as done:
                if isinstance(done.value, Late | Rejected) and handled is not None and tracing.traced():
                    if deciding is None:
                        spans.enter_context(_verdict_span(handled, ledger))
                    _ruled(done.value)
                return done.value  # type: ignore[no-any-return]
            if isinstance(step, Append):
                if step.command is None and not following and tracing.traced():
                    spans.pop_all().close()
                    spans.enter_context(_consequence_span(step.event, ledger))
                step = _named(step)
            elif isinstance(step, NeedVerdictContext) and deciding is None:
                deciding = step.command
                if tracing.traced():
                    spans.enter_context(_verdict_span(deciding, ledger))
            said = yield step
            if isinstance(step, Appended):
                _appended(step, handled)
                withheld = isinstance(step.event, events.FactsWithheld)
                following = withheld and step.command is None
                if not withheld:
                    spans.pop_all().close()
                    deciding = None


def _named(step: Append) -> Append:
    """Return the step with the current span in its event: that is what brings it about."""
    if not tracing.traced():
        return step
    event, command = step
    return Append(replace(event, trace=tracing.current(event.trace)), command)


def counted(command: Command, outcome: Outcome) -> None:
    """Count a message that was decided, came late or was objected to. Control messages are none of them."""
    if isinstance(command.what, Control) or isinstance(outcome, MeshFrozen):
        return
    ruled = outcome.event if isinstance(outcome, Decided) else outcome
    sender = command.sender if command.role == "agent" else command.role
    labels = {tracing.VERDICT_IS: _verdict(ruled), tracing.MOVE: _asked(command), tracing.FROM: sender}
    if rule := _rule(ruled):
        labels[tracing.RULE] = rule
    telemetry.handoffs.add(1, labels)


def _verdict_span(command: Command, ledger: Ledger) -> AbstractContextManager[Span]:
    """Open the span of a verdict, linked to that which the message brought."""
    if not tracing.traced():
        return tracing.OFF
    what, came = command.what, command.trace
    name = tracing.CONTROL if isinstance(what, Control) else tracing.VERDICT
    said: dict[str, str | int] = {
        **_about(name, command.request),
        tracing.FROM: command.sender,
        tracing.MOVE: _asked(command),
    }
    for field, attribute in (("turn", tracing.TURN), ("round", tracing.ROUND)):
        if (value := getattr(what, field, None)) is not None:
            said[attribute] = value
    parent = trace_of(ledger.trace, came)
    return tracing.span(name, tracing.CONSUMER, parent=parent, came=came, attributes=said)


def _consequence_span(event: AnyEvent, ledger: Ledger) -> AbstractContextManager[Span]:
    """Open the span of a consequence, in its request's own trace."""
    said = _about(tracing.CONSEQUENCE, event.request)
    return tracing.span(tracing.CONSEQUENCE, tracing.CONSUMER, parent=ledger.trace, attributes=said)


def _appended(step: Appended, handled: Command | None) -> None:
    """Tell of an event that is in the log now: the current span is what brought it about."""
    event, command = step.event, step.command
    if isinstance(event, events.RequestOpened):
        telemetry.opened_requests.add(1)
        telemetry.open_requests.add(1)
    elif (ended := _ENDED.get(type(event))) is not None:
        telemetry.ended_requests.add(1, {tracing.STATUS: ended})
        if not isinstance(event, events.RequestRefused):
            telemetry.open_requests.add(-1)
    if command is not None and not isinstance(event, events.FactsWithheld):
        if handled is None or handled.cause != command.cause:
            counted(
                command, Decided(event)
            )  # it was deferred; what is handled is counted once that is certain
        _ruled(event)
    if not tracing.traced():
        return
    span = get_current_span()
    span.set_attributes({tracing.EVENT: event.id, tracing.EVENT_TYPE: type_of(event), tracing.TO: event.to})
    work = getattr(event, "work", None)
    if work is not None:
        span.set_attributes({tracing.DEPTH: work.depth, tracing.TURN: work.turn, tracing.ROUND: work.round})


def _ruled(ruling: Ruled) -> None:
    """Tell on the current span what came of a message."""
    if not tracing.traced():
        return
    span = get_current_span()
    span.set_attribute(tracing.VERDICT_IS, _verdict(ruling))
    if rule := _rule(ruling):
        span.set_attribute(tracing.RULE, rule)
    if isinstance(ruling, Rejected):
        span.set_attribute(tracing.REJECTION, ruling.code)


def _about(name: str, request: str) -> dict[str, str | int]:
    return {
        **_CONSUMES,
        tracing.DESTINATION: _TEMPLATES[name],
        tracing.REQUEST: request,
        tracing.CONVERSATION: request,
    }


def _asked(hearing: Command) -> str:
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
