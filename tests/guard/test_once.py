"""A request that was submitted for a time begins then, once, whatever dies; until then one can cancel it."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from mesh import ops
from mesh.bus.schedules import stored_schedule
from mesh.errors import Impossible, NotFound
from mesh.ops.schedules import StandingSchedule, SubmittedAt
from protocol.wire import subjects
from protocol.wire.commands import Submit
from protocol.wire.events import RequestOpened
from protocol.wire.handoff import Constraints
from protocol.wire.ids import AgentName, is_request_id
from protocol.wire.schedule import ScheduleTick
from tests.certain import is_
from tests.guard.stage import HASTY, Stage, furnished_mesh, staged, wall_clock_us
from tests.guard.test_schedules import DAY_US, LATER, a_guard_at, came_of, fire, opened, ticks
from tests.servers import until

WANTED = Submit(text="remind them", to=AgentName("a"))
SECOND_US = 1_000_000


@pytest.fixture(autouse=True)
async def nothing_is_left(stage: Stage) -> AsyncIterator[None]:
    """Other tests on this server list schedules, too."""
    yield
    admin = await stage.bus("admin")
    found = await ops.schedules.schedules(admin)
    await ops.schedules._forget(admin, [each.name for each in found if each.at is not None])


async def submitted_at(stage: Stage, at_us: int, **limits: int) -> SubmittedAt:
    admin = await stage.bus("admin")
    return await ops.schedules.submit_at(admin, WANTED, at_us, client="c1", by="ada", **limits)


async def listed(stage: Stage, name: str) -> StandingSchedule:
    (found,) = (each for each in await ops.schedules.schedules(await stage.bus("admin")) if each.name == name)
    return found


async def test_of_two_guards_and_many_timers_it_is_one_request_at_its_time(stage: Stage) -> None:
    for identity in ("g1", "g2"):
        await stage.ready(await stage.guard(identity))
    later = await submitted_at(stage, wall_clock_us() + 2 * SECOND_US)
    await fire(stage, later.schedule, times=10)
    assert is_request_id(later.request)
    (done,) = await came_of(stage, later.schedule, "submitted")
    await fire(stage, later.schedule, times=10)
    assert (done.at, done.request) == (later.at, later.request)
    assert await opened(stage) == [later.request]
    event = is_((await stage.log(later.request))[0], RequestOpened)
    assert (event.client, event.to) == ("c1", "a")
    assert event.at >= later.at
    over = await listed(stage, later.schedule)
    assert (over.at, over.due, over.tick) == (later.at, None, done)


async def test_neither_a_restart_of_the_bus_nor_the_death_of_its_guard_loses_it(tmp_path: Any) -> None:
    async with furnished_mesh(tmp_path, HASTY) as mesh, staged(mesh) as stage:
        later = await submitted_at(stage, wall_clock_us() + SECOND_US)
        await mesh.server.kill()
        await until(lambda: wall_clock_us() > later.at)
        await mesh.server.start()
        await stage.back()
        assert await ticks(stage, later.schedule) == []
        async with stage.doomed_guard("ticked") as doomed:
            await doomed.ended()
        assert [each.outcome for each in await ticks(stage, later.schedule)] == ["begun"]
        await stage.ready(await stage.guard())
        (done,) = await came_of(stage, later.schedule, "submitted")
        assert (done.at, done.request) == (later.at, later.request)
        assert await opened(stage) == [later.request]


async def test_no_timer_makes_it_come_early(stage: Stage) -> None:
    await stage.ready(await stage.guard())
    later = await submitted_at(stage, LATER)
    await fire(stage, later.schedule, times=3)
    assert await ticks(stage, later.schedule) == []
    assert (await listed(stage, later.schedule)).due == LATER


async def test_it_comes_late_by_a_day_at_most(stage: Stage) -> None:
    await a_guard_at(stage, LATER)
    late = await submitted_at(stage, LATER - DAY_US)
    too_late = await submitted_at(stage, LATER - DAY_US - 1)
    for each in (late, too_late):  # the bus is years behind this guard
        await fire(stage, each.schedule)
    assert (await came_of(stage, late.schedule, "submitted"))[0].request == late.request
    (missed,) = await came_of(stage, too_late.schedule, "missed")
    assert (missed.request, await opened(stage)) == ("", [late.request])
    assert (await listed(stage, too_late.schedule)).due is None


async def test_what_is_cancelled_never_comes_and_what_has_begun_cannot_be_cancelled(stage: Stage) -> None:
    admin = await stage.bus("admin")
    dropped, kept = await submitted_at(stage, LATER), await submitted_at(stage, LATER)
    cancelled = await ops.schedules.cancel(admin, dropped.schedule, by="ada")
    assert cancelled.tick == ScheduleTick(at=LATER, outcome="cancelled", detail="by ada")
    assert (cancelled.due, (await listed(stage, dropped.schedule)).due) == (None, None)
    with pytest.raises(Impossible, match="was cancelled already"):
        await ops.schedules.cancel(admin, dropped.schedule, by="ada")
    await a_guard_at(stage, LATER + 1)
    await fire(stage, kept.schedule)
    await came_of(stage, kept.schedule, "submitted")
    await fire(stage, dropped.schedule, times=3)
    assert await opened(stage) == [kept.request]
    with pytest.raises(Impossible, match=f"mesh request cancel {kept.request}"):
        await ops.schedules.cancel(admin, kept.schedule, by="ada")


async def test_of_a_guard_and_a_person_who_cancels_the_first_one_wins(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard begins after the person has looked, and before the person writes."""
    admin = await stage.bus("admin")
    later = await submitted_at(stage, LATER)
    before = await stored_schedule(admin, later.schedule)
    begun = ScheduleTick(at=LATER, outcome="begun", request=later.request, last=later.request)
    await admin.publish_durable(subjects.tick(later.schedule), msgspec.json.encode(begun))
    looks = [before]
    found = ops.schedules._found

    async def looked(bus: Any, name: str) -> Any:
        return looks.pop() if looks else await found(bus, name)

    monkeypatch.setattr(ops.schedules, "_found", looked)
    with pytest.raises(Impossible, match="was submitted"):
        await ops.schedules.cancel(admin, later.schedule, by="ada")
    assert [each.outcome for each in await ticks(stage, later.schedule)] == ["begun"]
    monkeypatch.undo()
    await a_guard_at(stage, LATER + 1)
    await fire(stage, later.schedule)
    await came_of(stage, later.schedule, "submitted")


async def test_a_pause_holds_it_back_and_the_end_of_the_pause_lets_it_come(stage: Stage) -> None:
    admin = await stage.bus("admin")
    later = await submitted_at(stage, LATER)
    await ops.schedules.pause(admin, later.schedule, by="ada")
    await a_guard_at(stage, LATER + 60 * SECOND_US)
    await fire(stage, later.schedule)
    assert await ticks(stage, later.schedule) == []
    resumed = await ops.schedules.resume(admin, later.schedule, by="ada")
    assert resumed.due == LATER
    await fire(stage, later.schedule)
    (done,) = await came_of(stage, later.schedule, "submitted")
    assert done.request == later.request


@pytest.mark.parametrize(
    ("wanted", "client", "at_us", "wrong"),
    [
        (WANTED, "c1", 1, "is over"),
        (WANTED, "c1", 10_413_792_000_000_000, "before the year 2200"),
        (WANTED, "c1", 1 << 62, "before the year 2200"),
        (WANTED, "gone", LATER, "'gone' is no client"),
        (WANTED, "a", LATER, "'a' is no client"),
        (Submit(text="x", to=AgentName("nobody")), "c1", LATER, "'nobody' is no agent"),
        (Submit(text="x", policy="nowhere"), "c1", LATER, "no policy 'nowhere'"),
        (Submit(text=""), "c1", LATER, "text"),
        (Submit(text="x", constraints=Constraints(deadline=LATER)), "c1", LATER, "before it would begin"),
    ],
)
async def test_what_could_never_be_submitted_is_refused_at_once(
    stage: Stage, wanted: Submit, client: str, at_us: int, wrong: str
) -> None:
    admin = await stage.bus("admin")
    before = len(await ops.schedules.schedules(admin))
    with pytest.raises((Impossible, NotFound), match=wrong):
        await ops.schedules.submit_at(admin, wanted, at_us, client=client, by="ada")
    assert len(await ops.schedules.schedules(admin)) == before


async def test_only_so_many_wait_and_those_that_are_long_over_make_room(stage: Stage) -> None:
    admin = await stage.bus("admin")
    over, waits = await submitted_at(stage, LATER), await submitted_at(stage, LATER)
    long_ago = ScheduleTick(at=wall_clock_us() - 8 * DAY_US, outcome="missed")
    await admin.publish_durable(subjects.tick(over.schedule), msgspec.json.encode(long_ago))
    newest = await submitted_at(stage, LATER)
    names = {each.name for each in await ops.schedules.schedules(admin)}
    assert {waits.schedule, newest.schedule} <= names
    assert over.schedule not in names
    assert await ticks(stage, over.schedule) == []
    waiting = sum(each.at is not None and each.tick is None for each in await ops.schedules.schedules(admin))
    with pytest.raises(Impossible, match=f"{waiting} requests wait"):
        await submitted_at(stage, LATER, most=waiting)
    await ops.schedules.cancel(admin, waits.schedule, by="ada")
    await submitted_at(stage, LATER, most=waiting)
