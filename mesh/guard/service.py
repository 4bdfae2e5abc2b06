"""The guard as a service: takes proposals, controls and fired timers from their queues to one processor.

Each message ends in exactly one of three ways. *Decided* (or late): acknowledged once everything that follows
is in the log. *Rejected or unreadable*: a dead letter is stored, a notice sent, then acknowledged. *Not now*
(the bus has a problem, or an event is newer than this build): given back, to come again. A guard fails
closed: it decides nothing on a log that it cannot read.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.consumer import Handler, Message
from mesh.bus.event_log import JetStreamLog, check_form
from mesh.bus.nats_protocol import Incoming
from mesh.bus.stores import ConfUnreadable
from mesh.bus.streams import MESSAGE_BYTES
from mesh.bus.streams import Kind as QueueKind
from mesh.errors import PASSING, BusError, LogUnreadable, Malformed, MeshError, StreamFull, UnknownEvent
from mesh.guard import messages
from mesh.guard.anchors import Anchors
from mesh.guard.clock import GuardPresence
from mesh.guard.context import DecisionContext, freeze_or_thaw
from mesh.guard.lane import GuardLane
from mesh.guard.messages import DeadLetters
from mesh.guard.observer import VERDICT_S
from mesh.guard.processor import MOST_EVENTS, Contended, GuardFailed, MeshIsFrozen, RequestProcessor
from mesh.guard.queues import HANDOVER_S, PartitionAssignment, Queues
from mesh.guard.schedules import Schedules
from mesh.guard.shadow import ShadowJudge
from mesh.service.conditions import Kind
from mesh.service.logs import bind, get_logger, place_of
from mesh.telemetry import export as telemetry
from mesh.telemetry import tracing
from protocol.domain.admission import UNKNOWN_REQUEST, Late, Rejected
from protocol.domain.steps import Decided, Outcome
from protocol.domain.timers import GUARD_FAILED
from protocol.wire import codec, subjects
from protocol.wire.commands import Command, Forget, OfferClaimed, is_control
from protocol.wire.errors import BrokenLog
from protocol.wire.events import type_of
from protocol.wire.records import MAX_DETAIL_CHARS, Ended, Notice, NoticeError

_log = get_logger(__name__)

LEAVE_S = 2.0
"""How long a server that does not answer may delay a leaving guard."""
GIVE_UP_AFTER = 20
"""Deliveries after which a message on which the guard itself fails becomes a dead letter."""
NOT_NOW = Kind("not_now", "now_again", "messages wait: {}", settle_s=5.0, blocks=False)
LOG_UNREADABLE = Kind(
    "log_unreadable", "log_readable", "the events of {} cannot be read", settle_s=12.0, blocks=False
)
"""It settles later than the affected messages come again."""
_EARLY_MOST_S = 10.0
"""Longest wait for a timer that fired too early, by this guard's estimate of the server's clock."""


class Guard:
    """The work of one guard process. `run` until cancelled; `drain` first to leave nothing half-done."""

    def __init__(
        self,
        bus: Bus,
        *,
        identity: str,
        context: DecisionContext | None = None,
        verdict_s: float = VERDICT_S,
        most_events: int = MOST_EVENTS,
    ) -> None:
        self._bus = bus
        self._identity = identity
        self._context = context or DecisionContext(bus)
        self._waits = self._context.waits
        self.assignment = PartitionAssignment(bus, identity)
        self._anchors = Anchors(
            bus, self.assignment.own, lambda: self.assignment.others, lambda: self._context.now()
        )
        self.shadow = ShadowJudge(
            bus, self.assignment.own, lambda: self._context.shadows, lambda: self._context.now()
        )
        log = JetStreamLog(bus)
        self._processor = RequestProcessor(
            bus, log, self._context, self._anchors, verdict_s, most_events, self.shadow
        )
        self._schedules = Schedules(bus, self._context, self._processor)
        handlers: dict[QueueKind, Handler] = {
            "CTL": self._guarded(self._on_control),
            "PROP": self._guarded(self._on_proposal),
            "TIMER": self._guarded(self._on_fire),
        }
        self._queues = Queues(bus, self.assignment, handlers, lambda: self._context.fleet)
        self._lane = GuardLane(
            bus, lambda: self._context.fleet, self.assignment, self._on_question, self._queues.waits
        )
        self._starting: asyncio.Event | None = None
        """Set once no further puller starts; None before the first one does."""
        self._leaving = False
        self._dead_letters = DeadLetters(bus)
        self.decided = 0
        self.dead = 0
        """How many dead letters it stored."""

    @property
    def ready(self) -> bool:
        """True if it takes work from every queue, in its own partitions."""
        return self._starting is not None and self._starting.is_set() and not self._leaving

    async def run(self) -> None:
        """Read the fleet, then take work until cancelled (or until drained while still starting).

        Waits while the bus is away. Raises OldForm for a log that only earlier builds read.
        """
        try:
            await self._run()
        finally:
            await self._lane.close()

    async def _run(self) -> None:
        tracing.probe()
        await self._context.start()
        await self._bus.retry_unavailable(lambda: check_form(self._bus))
        await self.assignment.start(self._context.fleet.partitions)
        await GuardPresence(
            self._bus, self._identity, self._context.clock, lambda: self._lane.state
        ).announce()
        self._starting = asyncio.Event()
        try:
            await self._queues.find()
            with contextlib.suppress(BusError):  # it is tried again when the fleet is read
                await self._lane.follow()
        finally:
            self._starting.set()
        if self._leaving:
            return
        _log.info("guard_ready", identity=self._identity, fleet=self._context.fleet.name)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.assignment.keep())
            tasks.create_task(self._queues.follow())
            tasks.create_task(self._context.keep_current())
            tasks.create_task(self._context.clock.keep())
            tasks.create_task(self._context.attendance.keep())
            tasks.create_task(self._context.memory.keep())
            tasks.create_task(self._anchors.keep())
            tasks.create_task(self.shadow.keep())
            tasks.create_task(self._schedules.keep())
            tasks.create_task(self._follow_freeze())
            tasks.create_task(self._follow_fleet())

    async def _follow_fleet(self) -> None:
        """Take from the queues of members that join the fleet."""
        while True:
            await self._context.read_again.wait()
            self._context.read_again.clear()
            with contextlib.suppress(BusError):  # the fleet is read again soon, whatever happens
                await self._queues.find()
                await self._lane.follow()

    async def _follow_freeze(self) -> None:
        """Stop taking proposals and timers while the mesh is frozen; control messages go on.

        Schedules that came, or fell due, meanwhile are armed at the thaw.
        """
        while True:
            await self._context.frozen.wait()
            self._queues.pause()
            self._lane.pause()
            await self._context.thawed.wait()
            self._queues.pause(paused=False)
            self._lane.pause(paused=False)
            self._schedules.arm_soon()

    async def drain(self, grace_s: float) -> None:
        """Take nothing more and finish work in progress. What takes longer than `grace_s` comes again."""
        self._leaving = True  # a guard that is still starting ends by itself
        await self.assignment.leave(min(grace_s, HANDOVER_S))
        await asyncio.gather(self._queues.drain(grace_s), self._lane.drain(grace_s))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._anchors.leave()
        await self.shadow.leave()
        with contextlib.suppress(BusError):
            await self._bus.flush(LEAVE_S)  # messages given back must be sent before the connection closes
        _log.info("guard_drained", decided=self.decided, dead=self.dead)

    # --- messages ---------------------------------------------------------------------------------

    def _guarded(self, handler: Callable[[Message], Awaitable[None]]) -> Callable[[Message], Awaitable[None]]:
        """Wrap a handler so that its message always ends in one of the three ways."""

        async def handle(message: Message) -> None:
            # The handler runs in its own task, and what is bound here ends with it.
            request = message.subject.rpartition(".")[2]
            bind(request=request)
            try:
                await handler(message)
                if self._bus.conditions:
                    self._bus.conditions.clear(LOG_UNREADABLE, request)
            except asyncio.CancelledError:
                message.nak()  # this guard is leaving; others need not wait for the lease to end
                raise
            except (UnknownEvent, BrokenLog, LogUnreadable) as error:
                fields = {"code": error.code, "detail": str(error)}
                self._bus.conditions.raise_(LOG_UNREADABLE, request, held=message.subject, **fields)
                message.nak(5 * self._waits.again_s)
            except Malformed as error:
                await self._dead_letter(message, Rejected(error.code, str(error)))
            except ConfUnreadable as error:
                await self._dead_letter(message, Rejected(error.refusal, str(error)))
            except MeshIsFrozen:
                message.nak(self._waits.again_s)
            except StreamFull:
                # The bus has reported it. Only a person can make room, so retry less and less often.
                message.nak(min(self._waits.again_s * message.delivered, self._waits.full_most_s))
            except PASSING as error:
                _log.debug("not_now", code=error.code, subject=message.subject)  # the bus has reported it
                message.nak(self._waits.again_s)
            except (BusError, Contended) as error:
                self._bus.conditions.raise_(NOT_NOW, error.code, held=message.subject, detail=str(error))
                message.nak(self._waits.again_s)
            except GuardFailed as failure:
                self._log_failed(message, failure.__cause__)
                await self._give_up(message, request, ends_request=failure.ends_request)
            except Exception as error:
                self._log_failed(message, error)
                if message.delivered >= GIVE_UP_AFTER:
                    await self._give_up(message, request, ends_request=True)
                else:
                    message.nak(self._waits.again_s)

        return handle

    async def _on_proposal(self, message: Message) -> None:
        sent = self._sent(message)
        try:
            found = messages.proposal_of(sent)
        except Malformed as error:
            # If it is for the sender's open round, that round fails, so nothing waits for its timeout.
            if (failure := messages.failure_of(sent, error)) is not None:
                await self._processor.process(failure)
            raise
        await self._settle(message, found)

    async def _on_control(self, message: Message) -> None:
        sent = self._sent(message)
        if sent.request != subjects.MESH_WIDE:
            await self._settle(message, messages.control_of(sent))
            return
        control, place = codec.parse_control(sent.data), (message.stream_seq, message.stored_us)
        if isinstance(control, Forget):
            rejected = await self._context.memory.forget(control, sent.sender, sent.role, message.stored_us)
        else:
            rejected = await freeze_or_thaw(self._bus, control, sent.sender, sent.role, *place)
        if rejected is None:
            message.ack()
        else:
            await self._dead_letter(message, rejected)

    def _sent(self, message: Message) -> messages.Sent:
        sender, request = subjects.parse_queued(message.subject)
        role, trace = self._context.fleet.role_of(sender), tracing.traceparent_in(message.headers)
        return messages.Sent(sender, request, message.data, role, trace, message.stored_us)

    async def _on_fire(self, message: Message) -> None:
        request = subjects.parse_fire(message.subject)
        schedule = subjects.scheduled_by(request)
        if not schedule and (rejected := messages.unusable(request)) is not None:
            await self._dead_letter(message, rejected)
            return
        early_s = (message.stored_us - self._context.believed(message.stored_us)) / 1e6
        if early_s > 0:  # armed again, it would fire at once for as long as its server's clock is ahead
            message.nak(min(early_s, _EARLY_MOST_S))
            return
        if schedule:
            await self._schedules.look(schedule, message.stored_us)
        else:
            await self._processor.wake(request, message.stored_us)
        self._record_lag(message.stored_us, "timer")
        message.ack()

    async def _on_question(self, asked: Incoming) -> bool:
        """Decide a message from the lane; return True once the verdict is in the log.

        With any other outcome, the message comes again from the queue and is handled there.
        """
        sender, request = subjects.parse_queued(asked.subject)
        bind(request=request)
        role, trace = self._context.fleet.role_of(sender), tracing.traceparent_in(asked.headers)
        try:
            if len(asked.data) > MESSAGE_BYTES:
                return False
            sent = messages.Sent(sender, request, asked.data, role, trace, self._context.now())
            command = messages.proposal_of(sent)
            outcome = (
                command
                if isinstance(command, Rejected)
                else await self._processor.process(command, queued=False)
            )
            if isinstance(command, Rejected) or isinstance(outcome, Rejected):
                return False
            self._record_lag(command.stored, "proposal")
            await self._report(command, outcome)
        except (MeshError, Malformed) as error:
            _log.debug("not_decided_at_once", code=error.code)
            return False
        except Exception:
            _log.exception("not_decided_at_once")
            return False
        self.decided += 1
        return True

    async def _settle(self, message: Message, found: Command | Rejected) -> None:
        """Process a message's command, and end the message."""
        if isinstance(found, Rejected):
            await self._dead_letter(message, found)
            return
        outcome = await self._processor.process(found)
        if isinstance(outcome, Rejected) and outcome.code == UNKNOWN_REQUEST:
            now = self._context.now()
            is_young = now - message.stored_us < self._waits.overtaken_s * 1e6
            if is_young and messages.may_have_overtaken(found, now, self._waits.overtaken_s):
                message.nak(self._waits.again_s)
                return
        self._record_lag(message.stored_us, "control" if is_control(found.what) else "proposal")
        if isinstance(outcome, Rejected):
            await self._dead_letter(message, outcome)
            return
        await self._report(found, outcome)
        self.decided += 1
        message.ack()

    async def _report(self, found: Command, outcome: Outcome) -> None:
        """Notify the sender of outcomes that no event tells it."""
        if isinstance(outcome, Late):
            ended = Ended(why=outcome.ended, turn=outcome.turn, round=outcome.round)
            await self._notify(found.sender, found.request, ended=ended, digest=found.digest)
        elif isinstance(outcome, Decided) and type(found.what) is OfferClaimed:
            ended = Ended(
                why=type_of(outcome.event), turn=found.what.turn
            )  # it holds the offer until it knows
            await self._notify(found.sender, found.request, ended=ended)

    def _record_lag(self, stored_us: int, kind: str) -> None:
        lag_s = max(0.0, (self._context.now() - stored_us) / 1e6)
        telemetry.guard_lag.record(lag_s, {tracing.KIND: kind})

    # --- failures and dead letters ----------------------------------------------------------------

    @staticmethod
    def _log_failed(message: Message, error: BaseException | None) -> None:
        place = "" if error is None else place_of(error)
        fields = {"subject": message.subject, "delivered": message.delivered, "place": place}
        _log.error("guard_failed", **fields, exc_info=error)

    async def _give_up(self, message: Message, request: str, *, ends_request: bool) -> None:
        """End a message on which this guard itself fails, and if asked the request that cannot go on."""
        rejection = Rejected(GUARD_FAILED, "the guard itself failed on this message; its log says where")
        try:
            if await self._keep(message, rejection):
                if ends_request:
                    await self._processor.give_up(request)
                message.ack()
                return
        except (BusError, Contended, UnknownEvent, LogUnreadable) as error:
            _log.warning("not_given_up", code=error.code, subject=message.subject)
        message.nak(self._waits.again_s)

    async def _dead_letter(self, message: Message, rejection: Rejected) -> None:
        """End a rejected message: acknowledge it only once its dead letter is stored."""
        if await self._keep(message, rejection):
            message.ack()
        else:
            message.nak(self._waits.again_s)

    async def _keep(self, message: Message, rejection: Rejected) -> bool:
        """Store a dead letter and notify the sender; return False if it could not be stored."""
        try:
            sender, request = subjects.parse_queued(message.subject)
        except ValueError:  # a timer has no sender
            sender, request = "", message.subject.rpartition(".")[2]
        fields = {"code": rejection.code, "detail": rejection.detail, "request": request}
        try:
            if not await self._dead_letters.keep(sender, message, at=self._context.now(), **fields):
                return False
        except BusError:
            return False
        self.dead += 1
        _log.warning("dead_letter", code=rejection.code, sender=sender, request=request)
        if sender:
            reason = NoticeError(code=rejection.code, detail=rejection.detail[:MAX_DETAIL_CHARS])
            await self._notify(sender, request, error=reason, digest=codec.body_digest(message.data))
        return True

    async def _notify(self, to: str, request: str, **fields: Any) -> None:
        notice = Notice(request=request, **fields)
        await self._bus.publish(subjects.note(to, request), msgspec.json.encode(notice))
