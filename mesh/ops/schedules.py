"""Schedules: what ticks next, what came of the last tick; pause, resume, and run one now."""

import time

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import last
from mesh.bus.schedules import StoredSchedule, stored_schedule, stored_schedules
from mesh.bus.stores import write_revision
from mesh.errors import Impossible, NotFound
from mesh.ops.checks import Results
from mesh.service.printable import when
from protocol.wire import codec, subjects
from protocol.wire.ids import entropy_of, request_id
from protocol.wire.schedule import SchedulePause, ScheduleTick

OVERDUE_US = 60_000_000
"""Lateness from which on doctor finds it wrong that a schedule has not ticked."""


class StandingSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is now."""

    name: str
    client: str
    """In whose name its requests are submitted."""
    to: str
    """The first agent; empty for the fleet's entry agent."""
    cron: str
    zone: str
    overlap: str
    paused: bool
    due: int | None
    """UTC µs of the next tick, in the past if no guard is there; None if it does not tick."""
    tick: ScheduleTick | None
    """The last tick, and what came of it."""
    unreadable: str = ""
    """Why guards cannot read it; empty if they can."""


async def schedules(bus: Bus) -> list[StandingSchedule]:
    """Return all schedules by name, as they are now. Raises BusError."""
    return [_standing(each) for each in await stored_schedules(bus)]


def _standing(stored: StoredSchedule) -> StandingSchedule:
    schedule = stored.schedule
    return StandingSchedule(
        name=stored.name,
        client="" if schedule is None else schedule.client,
        to="" if schedule is None else schedule.submit.to or "",
        cron="" if schedule is None else schedule.cron,
        zone="" if schedule is None else schedule.zone,
        overlap="" if schedule is None else schedule.overlap,
        paused=stored.paused,
        due=stored.due,
        tick=stored.tick,
        unreadable=stored.unreadable,
    )


async def ticking(bus: Bus) -> Results:
    """Tell of schedules that tick; find those that are overdue, or whose last request was refused."""
    now = time.time_ns() // 1000
    for each in await schedules(bus):
        so, tick = f"the schedule {each.name}", each.tick
        if each.unreadable:
            continue  # the check of documents tells of it
        if each.paused:
            yield "ok", f"{so} is paused"
        elif each.due is not None and each.due < now - OVERDUE_US:
            yield "found", f"{so} was due at {when(each.due)}, and no guard has let it tick"
        elif tick is not None and tick.outcome == "refused":
            yield "found", f"the last request of {so} was refused: {tick.detail}"
        else:
            yield "ok", f"{so} ticks next at {'no time' if each.due is None else when(each.due)}"


async def _found(bus: Bus, name: str) -> StoredSchedule:
    for each in await stored_schedules(bus):
        if each.name == name:
            return each
    raise NotFound(f"there is no schedule {name!r}: see mesh schedule ls")


async def pause(bus: Bus, name: str, *, by: str) -> StandingSchedule:
    """Stop a schedule until it is resumed; return it. It takes the admin's credentials.

    Raises NotFound, Impossible if it is paused, SequenceConflict if somebody else writes, BusError.
    """
    return await _set_paused(bus, name, paused=True, by=by)


async def resume(bus: Bus, name: str, *, by: str) -> StandingSchedule:
    """Let a schedule tick again, from now on; return it. Raises as `pause`."""
    return await _set_paused(bus, name, paused=False, by=by)


async def _set_paused(bus: Bus, name: str, *, paused: bool, by: str) -> StandingSchedule:
    if (await _found(bus, name)).paused is paused:
        raise Impossible(f"the schedule {name} is {'paused already' if paused else 'not paused'}")
    subject, body = subjects.pause(name), msgspec.json.encode(SchedulePause(paused=paused))
    kept = await last(bus, "CONF", subject, leader=True)
    await write_revision(bus, subject, body, by=by, after=0 if kept is None else kept.seq)
    changed = await stored_schedule(bus, name)
    assert changed is not None
    return _standing(changed)


class RunNow(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was submitted beside the calendar."""

    schedule: str
    client: str
    request: str


async def run_now(bus: Bus, name: str) -> RunNow:
    """Submit a schedule's request at once, even if it is paused. It takes the admin's credentials.

    The calendar goes on as if nothing had happened: the next tick comes when it would, and does not wait for
    the end of this request. Raises NotFound, Impossible for a schedule that cannot be read, BusError.
    """
    schedule = (await _found(bus, name)).schedule
    if schedule is None:
        raise Impossible(f"the schedule {name} cannot be read: run mesh doctor")
    now_ns = time.time_ns()
    request = request_id(schedule.client, now_ns // 1_000_000, entropy_of("run-now", name, now_ns))
    body = codec.encode(schedule.submit)
    await bus.publish_durable(subjects.prop(schedule.client, request), body)
    return RunNow(schedule=name, client=schedule.client, request=request)
