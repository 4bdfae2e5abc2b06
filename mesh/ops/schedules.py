"""Schedules: what ticks next, what came of the last tick; pause, resume, and run one now.

A request that is to begin at a time is a schedule with one tick. It has a name of its own, is listed with the
others, and can be cancelled until a guard begins with it.
"""

import os
import time

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import get, last
from mesh.bus.schedules import StoredSchedule, stored_schedule, stored_schedules
from mesh.bus.stores import write_revision
from mesh.errors import Impossible, NotFound, SequenceConflict
from mesh.ops.checks import Results
from mesh.ops.roster import fleet_of
from mesh.service.printable import when
from protocol.wire import codec, subjects
from protocol.wire.commands import Submit
from protocol.wire.ids import AgentName, derive, entropy_of, request_id
from protocol.wire.schedule import (
    LONGEST_CATCH_UP_S,
    Schedule,
    ScheduleEntry,
    SchedulePause,
    ScheduleTick,
    schedule_mistakes,
    tick_request,
)

OVERDUE_US = 60_000_000
"""Lateness from which on doctor finds it wrong that a schedule has not ticked."""
ONCE = "once-"
"""How the name of a request's schedule begins that ticks once."""
MOST_WAITING = 500
"""Requests that may wait for their times. Guards look at each of them twice a minute."""
_DAY_US = 86_400 * 1_000_000
_KEPT_US = 7 * _DAY_US
"""How long a schedule that ticks once is listed after its tick. Then the next one takes its place."""


class StandingSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is now."""

    name: str
    client: str
    """In whose name its requests are submitted."""
    to: str
    """The first agent; empty for the fleet's entry agent."""
    cron: str
    at: int | None
    """UTC µs of its only tick; None for one with a calendar."""
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
        at=None if schedule is None else schedule.at,
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
        elif each.at is not None and tick is not None and tick.outcome != "begun":
            if tick.outcome in ("refused", "missed") and tick.at > now - _DAY_US:
                yield "found", f"the request of {so} was {tick.outcome}: {tick.detail}"
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
    if schedule.at is not None:
        raise Impossible(f"{name} submits one request, at {when(schedule.at)}: cancel it, and submit it now")
    now_ns = time.time_ns()
    request = request_id(schedule.client, now_ns // 1_000_000, entropy_of("run-now", name, now_ns))
    body = codec.encode(schedule.submit)
    await bus.publish_durable(subjects.prop(schedule.client, request), body)
    return RunNow(schedule=name, client=schedule.client, request=request)


# --- one request, at a time -------------------------------------------------------------------------


class SubmittedAt(msgspec.Struct, frozen=True, kw_only=True):
    """A request that guards will submit."""

    schedule: str
    """The name under which it is listed until then, and can be cancelled."""
    client: str
    request: str
    """The id that it will have."""
    at: int
    """UTC µs."""


async def submit_at(
    bus: Bus, submit: Submit, at_us: int, *, client: str, by: str, most: int = MOST_WAITING
) -> SubmittedAt:
    """Have a request submitted at a time (UTC µs), in a client's name. It takes the admin's credentials.

    Once this returns, the bus has it: no crash of this machine or of a guard keeps it from being submitted.
    If no guard is there at the time, it comes up to a day late.

    Args:
        most: how many may wait.

    Raises NotFound for a client, agent or policy that the mesh does not have, Impossible for a time that is
    over or a submit that no guard would take, and if `most` wait already; BusError.
    """
    now = time.time_ns() // 1000
    if at_us <= now:
        raise Impossible(f"{when(at_us)} is over")
    deadline = submit.constraints.deadline
    if deadline is not None and deadline <= at_us:
        raise Impossible(f"its deadline is at {when(deadline)}, before it would begin")
    await _check_names(bus, submit, client)
    schedule = Schedule(client=AgentName(client), at=at_us, catch_up_s=LONGEST_CATCH_UP_S, submit=submit)
    if mistakes := schedule_mistakes(schedule):
        raise Impossible("; ".join(mistakes))
    once = [each for each in await stored_schedules(bus) if each.schedule and each.schedule.at is not None]
    if sum(each.tick is None for each in once) >= most:
        raise Impossible(f"{most} requests wait for their times already: see mesh schedule ls")
    await _forget(bus, [each.name for each in once if each.tick and each.tick.at < now - _KEPT_US])
    name = f"{ONCE}{derive('once', os.urandom(16).hex())[:12]}"
    body = msgspec.json.encode(ScheduleEntry(schedule=schedule))
    await write_revision(bus, subjects.schedule(name), body, by=by, after=0)
    return SubmittedAt(schedule=name, client=client, request=tick_request(schedule, name, at_us), at=at_us)


async def _check_names(bus: Bus, submit: Submit, client: str) -> None:
    """Raise NotFound for what the mesh does not have today."""
    fleet = await fleet_of(bus)
    if client not in (*fleet.clients, *fleet.operators):
        raise NotFound(f"{client!r} is no client or operator of the fleet")
    if submit.to is not None and submit.to not in fleet.agents:
        raise NotFound(f"{submit.to!r} is no agent of the fleet")
    if await get(bus, "CONF", subjects.policy(submit.policy)) is None:
        raise NotFound(f"there is no policy {submit.policy!r}")


async def _forget(bus: Bus, names: list[str]) -> None:
    """Take schedules off the bus that have ticked. The entry goes first: without it nothing ticks again."""
    for name in names:
        for subject in (subjects.schedule(name), subjects.pause(name), subjects.tick(name)):
            await bus.api("STREAM.PURGE.CONF", {"filter": subject})


async def cancel(bus: Bus, name: str, *, by: str) -> StandingSchedule:
    """Keep a request from being submitted at its time; return its schedule. It takes the admin's credentials.

    It writes the tick before a guard does, by compare-and-set. So either the request never comes, or this
    raises Impossible. Raises NotFound, BusError, and Impossible for a schedule with a calendar.
    """
    found = await _found(bus, name)
    if found.schedule is None or found.schedule.at is None:
        raise Impossible(
            f"{name} has a calendar: mesh schedule pause {name}, or take it out of the fleet file"
        )
    tick = ScheduleTick(at=found.schedule.at, outcome="cancelled", detail=f"by {by}" if by else "")
    if found.tick is None:
        try:
            await write_revision(bus, subjects.tick(name), msgspec.json.encode(tick), by=by, after=0)
            return _standing(found._replace(tick=tick))
        except SequenceConflict:
            found = await _found(bus, name)
    raise Impossible(_over(found))


def _over(found: StoredSchedule) -> str:
    """Return why it is too late to cancel."""
    assert found.tick is not None
    if found.tick.outcome in ("begun", "submitted"):
        return f"{found.name} was submitted: mesh request cancel {found.tick.request}"
    return f"{found.name} was {found.tick.outcome} already"
