"""Schedules as they lie in CONF: what is to be submitted, whether it is paused, and the last tick."""

from functools import partial
from typing import NamedTuple, TypeVar

from mesh.bus.connection import Bus
from mesh.bus.reader import StoredMessage, last, newest
from mesh.service.cron import Calendar, CronInvalid, Once, parse_calendar
from protocol.wire import codec, subjects
from protocol.wire.documents import DocumentInvalid
from protocol.wire.schedule import Schedule, SchedulePause, ScheduleTick, read_schedule

T = TypeVar("T")


class StoredSchedule(NamedTuple):
    """A schedule, and the state that guards and people keep of it."""

    name: str
    schedule: Schedule | None
    """None if it was removed, or cannot be read."""
    calendar: Calendar | Once | None
    unreadable: str
    """Why it cannot be read; empty if it can."""
    since: int
    """UTC µs since when it stands as it is. Earlier ticks are not made up for. 0 if it ticks only once."""
    paused: bool
    tick: ScheduleTick | None
    tick_seq: int
    """Sequence of `tick`, which the next one replaces; 0 if there is none."""

    @property
    def due(self) -> int | None:
        """When it is due next (UTC µs), perhaps in the past; None if it is not to tick."""
        if self.calendar is None or self.paused:
            return None
        return self.calendar.after(max(self.since, 0 if self.tick is None else self.tick.at))

    def has_begun(self, tick: ScheduleTick) -> bool:
        """Return True if a tick began under the schedule as it stands, which may therefore submit it."""
        return self.schedule is not None and not self.paused and tick.at >= self.since


async def stored_schedules(bus: Bus) -> list[StoredSchedule]:
    """Return every schedule by name, without those that were removed. Raises BusError."""
    read = partial(newest, bus, "CONF")
    entries = {_name(each): each for each in await read(subjects.SCHEDULE_ENTRIES)}
    pauses = {_name(each): each for each in await read(subjects.SCHEDULE_PAUSES)} if entries else {}
    ticks = {_name(each): each for each in await read(subjects.SCHEDULE_TICKS)} if entries else {}
    found = (_stored(name, entries[name], pauses.get(name), ticks.get(name)) for name in sorted(entries))
    return [each for each in found if each.schedule is not None or each.unreadable]


async def stored_schedule(bus: Bus, name: str) -> StoredSchedule | None:
    """Return a schedule as the leader of CONF has it; None if there never was one. Raises BusError."""
    read = partial(last, bus, "CONF", leader=True)
    entry = await read(subjects.schedule(name))
    if entry is None:
        return None
    return _stored(name, entry, await read(subjects.pause(name)), await read(subjects.tick(name)))


def _stored(
    name: str, entry: StoredMessage, pause: StoredMessage | None, tick: StoredMessage | None
) -> StoredSchedule:
    schedule, wrong = None, ""
    calendar: Calendar | Once | None = None
    try:
        schedule = read_schedule(entry.data, name).schedule
        if schedule is not None:
            at, cron = schedule.at, schedule.cron
            calendar = parse_calendar(cron, schedule.zone) if at is None else Once(at)
    except (DocumentInvalid, CronInvalid) as invalid:
        schedule, wrong = None, str(invalid)
    return StoredSchedule(
        name=name,
        schedule=schedule,
        calendar=calendar,
        unreadable=wrong,
        since=0 if isinstance(calendar, Once) else max(entry.at, 0 if pause is None else pause.at),
        paused=(found := _readable(pause, SchedulePause)) is not None and found.paused,
        tick=_readable(tick, ScheduleTick),
        tick_seq=0 if tick is None else tick.seq,
    )


def _readable(stored: StoredMessage | None, kind: type[T]) -> T | None:
    return None if stored is None else codec.readable(stored.data, kind)


def _name(stored: StoredMessage) -> str:
    return stored.subject.rpartition(".")[2]
