"""Observes decisions with spans, counters and log lines, and ends one that takes too long with a watchdog.

Telemetry contains only names, ids and codes: the kind of a move, the rule of a refusal. Without tracing, no
code for spans runs.
"""

import contextlib
import ctypes
import signal
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final

from msgspec.structs import replace
from opentelemetry.trace import Span

from mesh.errors import MeshError
from mesh.service.logs import get_logger
from mesh.telemetry import export as telemetry
from mesh.telemetry import tracing
from protocol.domain import people
from protocol.domain.admission import Late, Rejected
from protocol.domain.decider import OpenDecision
from protocol.domain.envelope import trace_of
from protocol.domain.ledger import Ledger
from protocol.domain.steps import (
    Append,
    Appended,
    Decided,
    MeshFrozen,
    NeedVerdictContext,
    Outcome,
    Settled,
    Step,
)
from protocol.wire import events
from protocol.wire.commands import Command, Control, asked_for, is_control
from protocol.wire.events import AnyEvent, FactsWithheld, MoveRefused, RequestOpened, RequestRefused, type_of

_log = get_logger(__name__)

Ruled = AnyEvent | Late | Rejected
_ENDED = {kind: type_of(kind).partition(".")[2] for kind in events.Ended.__args__}
_VERDICTS: Mapping[type, str] = {
    Late: "late",
    Rejected: "rejected",
    events.MoveRefused: "refused",
    events.RequestRefused: "refused",
    events.MoveDeferred: "deferred",
    events.TurnFailed: "recorded",
    events.EffectDoubted: "recorded",
}
_ROUTINE: Final = frozenset(
    {
        events.RequestOpened,
        events.HandoffAdmitted,
        events.FactsWithheld,
        events.RequestCompleted,
        events.TurnRetried,
    }
)
"""Events of the usual path. They are in the log of events, so the guard logs them only when debugging."""
_MOST_ALARMS: Final = 10_000
_TEMPLATES = {
    tracing.VERDICT: "mesh.prop.{sender}.{request}",
    tracing.CONTROL: "mesh.ctl.{sender}.{request}",
    tracing.CONSEQUENCE: "mesh.timer.fire.{partition}.{request}",
}


# --- spans ----------------------------------------------------------------------------------------


class TracedDecision:
    """A traced decision: each verdict and each consequence is a span of its request's trace.

    Args:
        ledger: the request's ledger.
        handled: the command that is decided; None if a timer fired.
        spans: holds the open span.
    """

    def __init__(
        self, decision: OpenDecision, ledger: Ledger, handled: Command | None, spans: ExitStack
    ) -> None:
        self._decision, self._ledger, self._handled = decision, ledger, handled
        self._spans = spans
        self._span: Span | None = None
        self._about: Command | None = None
        """The command that the span is about; None for a consequence."""
        self._plan = ""
        """`traceparent` of the current plan, which is the parent of all its tasks' spans."""

    @property
    def admitting(self) -> bool:
        return self._decision.admitting

    def next(self) -> Step:
        """Return the decision's next step. An event to store gets the `traceparent` of its span."""
        step = self._decision.next()
        if isinstance(step, Append | NeedVerdictContext):
            if self._span is None or self._about is not step.command:
                opens_task = isinstance(step, Append) and isinstance(step.event, _OF_PLANS)
                self._begin(step.command, self._plan if opens_task else "")
            if isinstance(step, Append):
                step.event = replace(step.event, trace=tracing.current(step.event.trace))
        elif isinstance(step, Appended):
            self._tell(step)
        elif isinstance(step, Settled) and self._handled and isinstance(step.outcome, Late | Rejected):
            _tell(self._span or self._begin(self._handled), step.outcome)
        return step

    def _begin(self, about: Command | None, plan: str = "") -> Span:
        self._end()
        self._about = about
        self._span = self._spans.enter_context(_span(about, self._ledger, plan))
        return self._span

    def _end(self) -> None:
        self._spans.pop_all().close()
        self._span = None

    def _tell(self, step: Appended) -> None:
        if self._span is None:
            return
        _tell_event(self._span, step)
        if isinstance(step.event, events.TurnDelegated):
            self._plan = step.event.trace
        if not isinstance(step.event, FactsWithheld):  # it shares a span with the next event
            self._end()


@contextmanager
def traced(decision: OpenDecision, ledger: Ledger, handled: Command | None) -> Iterator[TracedDecision]:
    """Trace a decision. The arguments are those of `TracedDecision`."""
    with ExitStack() as spans:
        yield TracedDecision(decision, ledger, handled, spans)


_OF_PLANS = (events.TaskOpened, events.TaskOffered, FactsWithheld)


def _span(command: Command | None, ledger: Ledger, plan: str = "") -> AbstractContextManager[Span]:
    """Open the span of a verdict, linked to its message's span; without a command, that of a consequence.

    Args:
        plan: consequences: `traceparent` of the plan that led to it; empty for the newest event.
    """
    what = None if command is None else command.what
    name = tracing.CONTROL if isinstance(what, Control) else tracing.VERDICT
    name = tracing.CONSEQUENCE if command is None else name
    request = str(ledger.request) if command is None else command.request
    named = {} if command is None else {"sender": command.sender, "request": request}
    attributes: dict[str, str | int] = {
        **tracing.messaging(tracing.PROCESS, _TEMPLATES[name], **named),
        tracing.REQUEST: request,
        tracing.CONVERSATION: request,
    }
    if command is None:
        return tracing.span(name, tracing.CONSUMER, parent=plan or ledger.trace, attributes=attributes)
    attributes |= {tracing.FROM: command.sender, tracing.MOVE: asked_for(command.what)}
    for field, attribute in (("turn", tracing.TURN), ("round", tracing.ROUND)):
        if (value := getattr(what, field, None)) is not None:
            attributes[attribute] = value
    parent = trace_of(ledger.trace, command.trace)
    return tracing.span(name, tracing.CONSUMER, parent=parent, came=command.trace, attributes=attributes)


def _tell_event(span: Span, step: Appended) -> None:
    event, command = step.event, step.command
    if command is not None and not isinstance(event, FactsWithheld):
        _tell(span, event)
    span.set_attributes({tracing.EVENT: event.id, tracing.EVENT_TYPE: type_of(event), tracing.TO: event.to})
    work = event.work
    if work is not None:
        span.set_attributes({tracing.DEPTH: work.depth, tracing.TURN: work.turn, tracing.ROUND: work.round})


def _tell(span: Span, ruled: Ruled) -> None:
    """Set a message's outcome on a span."""
    span.set_attribute(tracing.VERDICT_IS, _verdict(ruled))
    if rule := _rule(ruled):
        span.set_attribute(tracing.RULE, rule)
    if isinstance(ruled, Rejected):
        span.set_attribute(tracing.REJECTION, ruled.code)


# --- counts ---------------------------------------------------------------------------------------


def count_event(step: Appended, handled: Command | None) -> None:
    """Count an event that is in the log now, except the verdict on `handled` (see `count_outcome`)."""
    event, command = step.event, step.command
    if type(event) is RequestOpened:
        telemetry.opened_requests.add(1)
    elif (ended := _ENDED.get(type(event))) is not None:
        telemetry.ended_requests.add(1, {tracing.STATUS: ended})
    was_deferred = command is not None and (handled is None or handled.cause != command.cause)
    if command is not None and was_deferred and type(event) is not FactsWithheld:
        count_outcome(command, Decided(event))


def count_outcome(command: Command, outcome: Outcome) -> None:
    """Count a message that was decided, late or rejected. Control messages are not counted."""
    if is_control(command.what) or isinstance(outcome, MeshFrozen):
        return
    ruled = outcome.event if isinstance(outcome, Decided) else outcome
    sender = command.sender if command.role == "agent" else command.role
    labels = {
        tracing.VERDICT_IS: _verdict(ruled),
        tracing.MOVE: asked_for(command.what),
        tracing.FROM: sender,
    }
    if rule := _rule(ruled):
        labels[tracing.RULE] = rule
    telemetry.handoffs.add(1, labels)


def _verdict(ruled: Ruled) -> str:
    return _VERDICTS.get(type(ruled), "admitted")


def _rule(ruled: Ruled) -> str:
    return str(ruled.refusal.rule) if type(ruled) is MoveRefused or type(ruled) is RequestRefused else ""


# --- log lines ------------------------------------------------------------------------------------


def log_event(event: AnyEvent, seq: int) -> None:
    """Log an event stored at `seq`: ids and codes, but nothing that a person or a model wrote."""
    routine = type(event) in _ROUTINE
    if routine and not _log.debugs:
        return
    fields: dict[str, object] = {"request": event.request, "n": event.n, "to": event.to, "seq": seq}
    if rule := _rule(event):
        fields["rule"] = rule
    if type(event) is events.TurnFailed:
        fields["error"] = event.error.code
    write = _log.debug if routine else _log.info
    write(type_of(event).replace(".", "_"), **fields)


class UrgentAlarms:
    """Logs each decision of people that is urgent: once by each guard that learns of it."""

    def __init__(self) -> None:
        self._logged: dict[tuple[str, int], None] = {}
        """(request, event since which it waits), the oldest first."""

    def log(self, ledger: Ledger, now: int) -> None:
        """Log what is urgent in a request at `now` (UTC µs), unless this guard has."""
        for turn in ledger.open.values():
            end = people.ends_at(ledger, turn)
            if end is None or people.urgent_at(turn, end) > now:
                continue
            place = (str(ledger.request), turn.since_n)
            if place in self._logged:
                continue
            self._logged[place] = None
            if len(self._logged) > _MOST_ALARMS:
                del self._logged[next(iter(self._logged))]
            fields = {"agent": turn.agent, "tier": turn.tier, "left_s": max(0.0, round((end - now) / 1e6, 1))}
            _log.warning("people_urgent", request=place[0], n=place[1], **fields)


# --- a watchdog over decisions --------------------------------------------------------------------
# A decision is plain Python in the guard's event loop. An endless one would stop every other request, and
# then the next guard. So a decision that takes too long is ended by an exception, wherever its code is. A
# thread checks the CPU time of each decision, so a slow machine or a stopped process ends nothing. C code
# that holds the interpreter cannot be ended like this; then `end_with_the_process` has the kernel end the
# process.

VERDICT_S = 2.0
"""CPU seconds that one step of a decision may take: less than a lease of the guards' queues."""
PROCESS_S = 30.0
"""CPU seconds after which the kernel ends the process, unless the watchdog's thread has run in between."""
_TICK_S = 0.1


class VerdictTooLong(MeshError, code="guard.verdict_too_long"):
    """A decision took too long. Its traceback shows where it was."""


class VerdictWatchdog:
    """Watches the decisions of one guard, at most one at a time.

    Args:
        within_s: CPU seconds that a decision may take between two of its steps.
    """

    def __init__(self, within_s: float = VERDICT_S) -> None:
        self._within_s = within_s
        self._lock = threading.Lock()
        self._number = 0
        self._running = False
        self._thread = 0
        self._seen: tuple[int, float] = (0, 0.0)
        """The decision that the last check found running, and its thread's CPU time at that moment."""
        _watch(self)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Raise VerdictTooLong in the body of the `with` statement once it takes too long."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        self._number += 1
        self._thread = threading.get_ident()
        self._running = True

    def end(self) -> None:
        """Stop watching. A pending exception is raised in here, and never later."""
        try:
            with self._lock:
                self._running = False
        finally:
            self._running = False
            _checkpoint()

    def look(self) -> None:
        """End the running decision if it has taken too long. Called by the watching thread."""
        with self._lock:
            if not self._running:
                return
            try:
                spent = time.clock_gettime(time.pthread_getcpuclockid(self._thread))
            except OSError:  # the thread is gone
                return
            number, since = self._seen
            if number != self._number:
                self._seen = (self._number, spent)
            elif spent - since >= self._within_s:
                self._seen = (
                    self._number,
                    spent,
                )  # if it swallows this exception, it is checked again
                raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
                raise_in(ctypes.c_ulong(self._thread), ctypes.py_object(VerdictTooLong))


def _checkpoint() -> None:
    """Let the interpreter raise a pending exception of this thread, as it does when a function begins."""


# --- the watching thread -----------------------------------------------------------------------------

_all: "weakref.WeakSet[VerdictWatchdog]" = weakref.WeakSet()
_guarding = threading.Lock()
_thread: threading.Thread | None = None
_kernel_s = 0.0


def _watch(dog: VerdictWatchdog) -> None:
    global _thread
    with _guarding:
        _all.add(dog)
        if _thread is None:
            _thread = threading.Thread(target=_run_checks, name="watchdog", daemon=True)
            _thread.start()


def _run_checks() -> None:
    while True:
        time.sleep(_TICK_S)
        if _kernel_s:
            signal.setitimer(signal.ITIMER_VIRTUAL, _kernel_s)
        with _guarding:
            dogs = list(_all)
        for dog in dogs:
            dog.look()
        del dogs


def end_with_the_process(after_s: float = PROCESS_S) -> None:
    """Have the kernel end this process if code holds the interpreter for too long.

    The stack is written to standard error when that happens. Call it in the main thread.

    Args:
        after_s: CPU seconds.
    """
    import faulthandler

    global _kernel_s
    faulthandler.register(signal.SIGVTALRM, chain=True)
    _kernel_s = after_s
    signal.setitimer(signal.ITIMER_VIRTUAL, after_s)
