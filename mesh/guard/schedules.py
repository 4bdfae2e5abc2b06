"""Schedules: a guard arms each one's next tick, and submits its request when the tick is due.

A tick rests on CONF alone: the schedule, the pause, and the tick before. A fired timer only has a guard look,
so it makes no tick before its time, however often it comes. The tick is written by compare-and-set before the
request is submitted, and its request's id is derived from schedule and tick. So each tick has one request:
of two guards one writes the tick, and a guard that finds one without an outcome submits the same request.
"""

import asyncio
import contextlib

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.nats_protocol import Incoming
from mesh.bus.schedules import StoredSchedule, stored_schedule, stored_schedules
from mesh.bus.stores import ConfUnreadable, arm_schedule, current_schedule, rfc3339, write_conf
from mesh.errors import BusError, Denied, SequenceConflict
from mesh.guard import messages
from mesh.guard.context import REFRESH_S, DecisionContext
from mesh.guard.processor import GuardFailed, RequestProcessor
from mesh.service.conditions import Kind
from mesh.service.logs import get_logger
from protocol.domain.admission import Rejected
from protocol.domain.steps import Decided
from protocol.domain.timers import GUARD_FAILED
from protocol.wire import codec, events, subjects
from protocol.wire.records import MAX_DETAIL_CHARS
from protocol.wire.schedule import Schedule, ScheduleTick, tick_request
from protocol.wire.subjects import CONF_CHANGED

_log = get_logger(__name__)

UNREADABLE = Kind(
    "schedule_unreadable",
    "schedule_readable",
    "the schedule {} cannot be read: run `mesh doctor`",
    lasts=True,
)
_AGAIN_S = 1.0
GIVEN_UP = "its guard died, and the schedule was changed or paused before another guard looked"


class Schedules:
    """One guard's part in the schedules of the mesh.

    Args:
        processor: decides the submits.
        refresh_s: how often it looks at all of them, in seconds.
    """

    def __init__(
        self,
        bus: Bus,
        context: DecisionContext,
        processor: RequestProcessor,
        *,
        refresh_s: float = REFRESH_S,
    ) -> None:
        self._bus = bus
        self._context = context
        self._processor = processor
        self._refresh_s = refresh_s
        self._log = JetStreamLog(bus)
        self._changed = asyncio.Event()
        self._unreadable: set[str] = set()

    async def keep(self) -> None:
        """Arm what is to tick, after each change and every `refresh_s`. Runs until cancelled."""
        for what in ("schedule", "pause"):
            await self._bus.retry_unavailable(
                lambda what=what: self._bus.subscribe(f"{CONF_CHANGED}.{what}.*", self._on_change)  # type: ignore[misc]
            )
        while True:
            self._changed.clear()
            most_s = self._refresh_s
            try:
                await self._arm_all()
            except BusError as error:  # the bus has reported it
                _log.debug("schedules_not_armed", code=error.code)
                most_s = _AGAIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(most_s):
                    await self._changed.wait()

    def arm_soon(self) -> None:
        """Have `keep` look at once: while the mesh was frozen it armed nothing."""
        self._changed.set()

    def _on_change(self, _message: Incoming) -> None:
        self._changed.set()

    async def _arm_all(self) -> None:
        found = await stored_schedules(self._bus)
        unreadable = {each.name for each in found if each.unreadable}
        for name in unreadable - self._unreadable:
            self._bus.conditions.raise_(UNREADABLE, name)
        for name in self._unreadable - unreadable:
            self._bus.conditions.clear(UNREADABLE, name)
        self._unreadable = unreadable
        if self._context.frozen.is_set():  # what has fired waits in a queue: each pass would add one more
            return
        for each in found:
            await self._arm(each)

    async def _arm(self, stored: StoredSchedule) -> None:
        """Have the bus call a guard when the schedule is due next."""
        due, timer = stored.due, subjects.schedule_timer(stored.name)
        if due is None:
            return
        armed = await current_schedule(self._bus, timer)
        if armed is None or armed[1] != due:
            after = 0 if armed is None else armed[0]
            with contextlib.suppress(SequenceConflict):  # another guard was first, or it fires
                await arm_schedule(self._bus, timer, due, self._context.fleet.partitions, after=after)

    # --- ticks ------------------------------------------------------------------------------------

    async def look(self, name: str, fired_us: int) -> None:
        """Submit what is due on a schedule whose timer fired (UTC µs), and arm the next tick.

        Raises BusError, SequenceConflict if another guard has written the tick, and as `process`.
        """
        found = await stored_schedule(self._bus, name)
        now = self._context.moment(fired_us).now
        if found is None:
            return
        if (tick := found.tick) is not None and tick.outcome == "begun":  # its guard died
            await self._submit(name, found.schedule if found.has_begun(tick) else None, tick, found.tick_seq)
        elif found.schedule is not None and (due := found.due) is not None and due <= now:
            await self._tick(found, found.schedule, due, now)
        again = await stored_schedule(self._bus, name)
        if again is not None:
            await self._arm(again)

    async def _tick(self, found: StoredSchedule, schedule: Schedule, due: int, now: int) -> None:
        assert found.calendar is not None
        at = found.calendar.newest(due, now, int(schedule.catch_up_s * 1e6))
        before = "" if found.tick is None else found.tick.last
        if at is None:
            late = f"every tick since {rfc3339(due)} was more than {schedule.catch_up_s:g} s late"
            tick = ScheduleTick(at=now, outcome="missed", last=before, detail=late)
        elif schedule.overlap == "skip" and before and await self._is_open(before):
            tick = ScheduleTick(at=at, outcome="skipped", last=before, detail=f"{before} is open")
        else:
            request = tick_request(schedule, found.name, at)
            tick = ScheduleTick(at=at, outcome="begun", request=request, last=request)
        seq = await self._write(found.name, tick, after=found.tick_seq)
        if tick.outcome == "begun":
            await self._submit(found.name, schedule, tick, seq)

    async def _is_open(self, request: str) -> bool:
        head = await self._log.head(request)
        return head is not None and not isinstance(codec.decode_event(head.data), events.Ended)

    async def _submit(self, name: str, schedule: Schedule | None, tick: ScheduleTick, seq: int) -> None:
        """Submit a tick's request, unless the log has it, and write what came of it.

        Args:
            schedule: None if it has changed since the tick began. Then nothing is submitted.
            seq: of the tick in CONF.
        """
        given_up = msgspec.structs.replace(tick, outcome="missed", detail=GIVEN_UP)
        if (head := await self._log.head(tick.request)) is not None:
            refused = _refusal_in(codec.decode_event(head.data))
        elif schedule is not None:
            refused = await self._refused(schedule, tick)
        else:
            await self._write(name, given_up, after=seq)
            return
        done = msgspec.structs.replace(tick, outcome="refused" if refused else "submitted", detail=refused)
        try:
            await self._write(name, done, after=seq)
        except SequenceConflict:
            found = await stored_schedule(self._bus, name)
            if found is None or found.tick != given_up:
                raise
            await self._write(name, done, after=found.tick_seq)  # this guard was slow, and taken for dead

    async def _refused(self, schedule: Schedule, tick: ScheduleTick) -> str:
        """Have the submit decided, as one from its client; return why it was refused, empty if it was not."""
        role = self._context.fleet.role_of(schedule.client)
        body, now = codec.encode(schedule.submit), self._context.now()
        command = messages.proposal_of(
            messages.Sent(schedule.client, tick.request, body, role, stored_us=now)
        )
        try:
            outcome = command if isinstance(command, Rejected) else await self._processor.process(command)
        except ConfUnreadable as error:
            outcome = Rejected(error.refusal, str(error))
        except GuardFailed as failure:
            _log.exception("guard_failed", request=tick.request, exc_info=failure.__cause__)
            outcome = Rejected(GUARD_FAILED, "the guard itself failed on this request; its log says where")
        if isinstance(outcome, Rejected):
            return f"{outcome.code}: {outcome.detail}"[:MAX_DETAIL_CHARS]
        return _refusal_in(outcome.event) if isinstance(outcome, Decided) else ""

    async def _write(self, name: str, tick: ScheduleTick, *, after: int) -> int:
        try:
            seq = await write_conf(self._bus, subjects.tick(name), tick, after=after)
        except Denied:  # a server whose accounts were written by an older version
            _log.warning("schedule_not_kept", schedule=name, hint="run `mesh setup`, and reload the server")
            raise
        if tick.outcome != "begun":
            write_line = _log.warning if tick.outcome in ("refused", "missed") else _log.info
            detail = {"detail": tick.detail} if tick.detail else {}
            write_line(f"schedule_{tick.outcome}", schedule=name, at=tick.at, request=tick.request, **detail)
        return seq


def _refusal_in(event: events.AnyEvent) -> str:
    """Return why a request was refused; empty for any other event than `request.refused`."""
    if not isinstance(event, events.RequestRefused):
        return ""
    return f"{event.refusal.rule}: {event.refusal.detail}"[:MAX_DETAIL_CHARS]
