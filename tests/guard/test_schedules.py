"""A schedule ticks once, whichever guard looks and however often; what comes of a tick is written down."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from mesh import ops
from mesh.bus.reader import every
from mesh.bus.schedules import stored_schedules
from mesh.bus.stores import revisions
from mesh.guard.schedules import GIVEN_UP, Schedules
from mesh.guard.service import Guard
from mesh.testing import EmbeddedBus
from protocol.wire import subjects
from protocol.wire.commands import Submit
from protocol.wire.config import PARTITIONS
from protocol.wire.events import RequestOpened
from protocol.wire.ids import AgentName, submitter_of
from protocol.wire.moves import Complete
from protocol.wire.schedule import Schedule, ScheduleEntry, ScheduleTick, tick_request
from tests.certain import is_
from tests.guard.stage import FLEET, HASTY, Stage, furnished_mesh, staged
from tests.guard.test_mesh_freeze import frozen, thawed
from tests.logs import captured_logs
from tests.servers import PATIENCE_S, eventually, until

DAY_US = 86_400 * 1_000_000
LATER = 1_900_000_000 * 1_000_000 // DAY_US * DAY_US + DAY_US // 24
"""One o'clock at night, years from now (UTC µs)."""


def plan(**fields: Any) -> Schedule:
    submit = Submit(text="the nightly report", to=AgentName("a"), policy=fields.pop("policy", "default"))
    return Schedule(**{"client": AgentName("c1"), "cron": "@every 1s", "submit": submit, **fields})


@contextlib.asynccontextmanager
async def scheduled(stage: Stage, name: str, schedule: Schedule) -> AsyncIterator[Schedule]:
    """Write a schedule, and remove it again."""
    admin = await stage.bus("admin")
    for entry in (ScheduleEntry(schedule=schedule), ScheduleEntry()):
        await admin.publish_durable(subjects.schedule(name), msgspec.json.encode(entry))
        if entry.schedule is not None:
            yield schedule


async def ticks(stage: Stage, name: str) -> list[ScheduleTick]:
    """Return what was written of a schedule's ticks, the oldest first."""
    kept = await revisions(await stage.bus("admin"), subjects.tick(name))
    return [msgspec.json.decode(each.data, type=ScheduleTick) for each in kept]


async def came_of(stage: Stage, name: str, outcome: str, count: int = 1) -> list[ScheduleTick]:
    """Wait for so many ticks with an outcome; return them."""
    found: list[ScheduleTick] = []

    async def there() -> bool:
        found[:] = [each for each in await ticks(stage, name) if each.outcome == outcome]
        return len(found) >= count

    await eventually(there, PATIENCE_S)
    return found


async def opened(stage: Stage, client: str = "c1") -> list[str]:
    """Return the requests of this stage that the log has of a client, each once for each opening."""
    found = []
    async for kept in every(await stage.bus("admin"), "LOG", "mesh.evt.a.*", stage._first):
        request = subjects.parse_evt(kept.subject).request
        if submitter_of(request) == client and msgspec.json.decode(kept.data)["type"] == "request.opened":
            found.append(request)
    return found


async def fire(stage: Stage, name: str, times: int = 1) -> None:
    """Have guards look at a schedule, and wait until they have."""
    admin = await stage.bus("admin")
    subject = subjects.timer_fire(subjects.schedule_timer(name), PARTITIONS)
    for _ in range(times):
        await admin.publish_durable(subject, b'{"at":1}')

    async def looked() -> bool:
        return not (await timers(stage, name))[1]

    await eventually(looked, PATIENCE_S)


async def timers(stage: Stage, name: str) -> tuple[int, int]:
    """Return how many timers of a schedule are armed, and how many have fired and wait for a guard."""
    timer = subjects.schedule_timer(name)
    info = await (await stage.bus("admin")).api("STREAM.INFO.TIMER", {"subjects_filter": "mesh.timer.>"})
    held = info["state"].get("subjects") or {}
    return held.get(subjects.timer_at(timer), 0), held.get(subjects.timer_fire(timer, PARTITIONS), 0)


async def a_guard_that_arms_when_told(stage: Stage) -> Guard:
    """Start a guard that looks at its schedules at changes and at the thaw, but not from time to time."""
    guard = await stage.guard()
    guard._schedules = Schedules(guard._bus, guard._context, guard._processor, refresh_s=10 * PATIENCE_S)
    await stage.ready(guard)
    return guard


async def a_guard_at(stage: Stage, now: int, identity: str = "g1") -> Guard:
    """Start a guard that decides at this time (UTC µs)."""
    guard = await stage.guard(identity, now=lambda: now)
    await stage.ready(guard)
    return guard


async def test_of_two_guards_each_tick_has_one_request_in_its_clients_name(stage: Stage) -> None:
    for identity in ("g1", "g2"):
        await stage.ready(await stage.guard(identity))
    async with scheduled(stage, "two", plan(overlap="allow")) as schedule:
        await came_of(stage, "two", "submitted", 3)
        await fire(stage, "two", times=20)
        await came_of(stage, "two", "submitted", 5)
    done = await came_of(stage, "two", "submitted")
    assert [each.request for each in done] == [tick_request(schedule, "two", each.at) for each in done]
    assert len({each.at for each in done}) == len(done)
    requests = await opened(stage)
    assert len(set(requests)) == len(requests)
    assert {each.request for each in done} <= set(requests)
    event = is_((await stage.log(done[0].request))[0], RequestOpened)
    assert (event.client, event.to) == ("c1", "a")


async def test_no_tick_while_the_last_request_is_open_and_the_next_one_after_its_end(stage: Stage) -> None:
    await stage.ready(await stage.guard())
    a = await stage.actor("a", served=True)
    async with scheduled(stage, "skips", plan()):
        (first,) = await came_of(stage, "skips", "submitted")
        skipped = await came_of(stage, "skips", "skipped", 2)
        assert {(each.request, each.last, each.detail) for each in skipped} == {
            ("", first.request, f"{first.request} is open")
        }
        assert await opened(stage) == [first.request]
        await a.propose(first.request, await a.work(first.request), Complete(answer="done"))
        _, second = await came_of(stage, "skips", "submitted", 2)
        assert second.request != first.request


async def test_a_tick_whose_guard_is_killed_has_its_one_request_all_the_same(tmp_path: Any) -> None:
    async with (
        furnished_mesh(tmp_path, HASTY) as mesh,
        staged(mesh) as stage,
        stage.doomed_guard("ticked") as doomed,
        scheduled(stage, "dies", plan()),
    ):
        await doomed.ended()
        (begun,) = await ticks(stage, "dies")
        assert begun.outcome == "begun"
        assert await opened(stage) == []
        await stage.ready(await stage.guard())
        (done, *_) = await came_of(stage, "dies", "submitted")
        assert (done.at, done.request) == (begun.at, begun.request)
        assert await opened(stage) == [begun.request]


@pytest.mark.parametrize("change", ["paused", "edited", "removed", "unreadable"])
async def test_a_tick_whose_guard_is_killed_is_missed_if_the_schedule_was_changed_meanwhile(
    tmp_path: Any, change: str
) -> None:
    async with (
        furnished_mesh(tmp_path, HASTY) as mesh,
        staged(mesh) as stage,
        stage.doomed_guard("ticked") as doomed,
        scheduled(stage, "dies", plan()),
    ):
        await doomed.ended()
        (begun,) = await ticks(stage, "dies")
        admin = await stage.bus("admin")
        entry = ScheduleEntry(schedule=plan(cron="@yearly") if change == "edited" else None)
        bodies = {"edited": msgspec.json.encode(entry), "removed": b"{}", "unreadable": b'{"schedule":1}'}
        if change == "paused":
            await ops.schedules.pause(admin, "dies", by="ada")
        else:
            await admin.publish_durable(subjects.schedule("dies"), bodies[change])
        await stage.ready(await stage.guard())
        (missed,) = await came_of(stage, "dies", "missed")
        assert (missed.at, missed.request, missed.detail) == (begun.at, begun.request, GIVEN_UP)
        assert await opened(stage) == []


async def test_a_begun_tick_that_the_log_has_is_submitted_however_the_schedule_stands(stage: Stage) -> None:
    await a_guard_at(stage, LATER)
    admin = await stage.bus("admin")
    async with scheduled(stage, "half-done", plan(cron="0 * * * *")):
        await fire(stage, "half-done")
        (done,) = await came_of(stage, "half-done", "submitted")
        begun = msgspec.structs.replace(done, outcome="begun")
        await admin.publish_durable(subjects.tick("half-done"), msgspec.json.encode(begun))
        await ops.schedules.pause(admin, "half-done", by="ada")
        await fire(stage, "half-done")
        assert (await came_of(stage, "half-done", "submitted", 2))[-1] == done


async def test_a_slow_guard_that_was_taken_for_dead_puts_the_outcome_right(stage: Stage) -> None:
    guard = await a_guard_at(stage, LATER)
    admin = await stage.bus("admin")
    async with scheduled(stage, "slow", plan(cron="0 * * * *")) as schedule:
        await ops.schedules.pause(admin, "slow", by="ada")
        request = tick_request(schedule, "slow", LATER)
        begun = ScheduleTick(at=LATER, outcome="begun", request=request, last=request)
        seq = (await admin.publish_durable(subjects.tick("slow"), msgspec.json.encode(begun))).seq
        await fire(stage, "slow")
        await came_of(stage, "slow", "missed")
        await guard._schedules._submit("slow", schedule, begun, seq)
        assert [each.outcome for each in await ticks(stage, "slow")] == ["begun", "missed", "submitted"]
        assert await opened(stage) == [request]


async def test_a_guard_without_the_right_to_write_ticks_submits_nothing_and_says_what_to_do(
    tmp_path: Any,
) -> None:
    """The accounts of a server that an older version has set up."""
    older = EmbeddedBus(FLEET, tmp_path)
    assert subjects.SCHEDULE_TICKS in older.server._accounts
    older.server._accounts = older.server._accounts.replace(subjects.SCHEDULE_TICKS, "mesh.conf.breaker.x")
    async with older as mesh, staged(mesh) as stage:
        await stage.ready(await stage.guard())
        with captured_logs() as logs:
            async with scheduled(stage, "denied", plan()):
                await until(lambda: any(each["event"] == "schedule_not_kept" for each in logs))
        (first, *_) = (each for each in logs if each["event"] == "schedule_not_kept")
        assert "mesh setup" in first["hint"]
        assert await ticks(stage, "denied") == []
        assert await opened(stage) == []


async def test_of_the_ticks_that_were_missed_the_newest_is_made_up_for(stage: Stage) -> None:
    await a_guard_at(stage, LATER + DAY_US // 48)
    async with scheduled(stage, "caught-up", plan(cron="0 * * * *")) as schedule:
        await fire(stage, "caught-up", times=3)
        (done,) = await came_of(stage, "caught-up", "submitted")
        assert done.at == LATER
        assert await opened(stage) == [tick_request(schedule, "caught-up", LATER)]


async def test_a_tick_that_is_too_late_is_missed_and_said_to_be(stage: Stage) -> None:
    await a_guard_at(stage, LATER)
    with captured_logs() as logs:
        async with scheduled(stage, "too-late", plan(cron="@daily", catch_up_s=60.0)):
            await fire(stage, "too-late", times=3)
    (missed,) = await ticks(stage, "too-late")
    assert (missed.at, missed.outcome, missed.request) == (LATER, "missed", "")
    assert await opened(stage) == []
    assert [each["schedule"] for each in logs if each["event"] == "schedule_missed"] == ["too-late"]


@pytest.mark.parametrize("name", ["early", "paused", "removed", "unknown", "unreadable"])
async def test_a_timer_alone_makes_no_tick(stage: Stage, name: str) -> None:
    admin = await stage.bus("admin")
    now = LATER if name != "early" else None
    if now is None:
        await stage.ready(await stage.guard())
    else:
        await a_guard_at(stage, now)
    async with contextlib.AsyncExitStack() as stack:
        if name != "unknown":
            await stack.enter_async_context(scheduled(stage, name, plan(cron="0 0 1 1 *")))
        if name == "paused":
            await ops.schedules.pause(admin, name, by="ada")
        elif name == "removed":
            await stack.aclose()
        elif name == "unreadable":
            await admin.publish_durable(subjects.schedule(name), b'{"schedule":{"cron":"@often"}}')
        await fire(stage, name, times=3)
        assert await ticks(stage, name) == []
        assert await opened(stage) == []


@pytest.mark.parametrize(
    ("fields", "detail"),
    [({"policy": "nowhere"}, "policy"), ({"client": AgentName("gone")}, "not_allowed")],
    ids=["by-the-policy", "of-a-client-that-left"],
)
async def test_a_guard_judges_a_tick_as_any_submit(stage: Stage, fields: dict[str, Any], detail: str) -> None:
    await a_guard_at(stage, LATER)
    name = detail.replace("_", "-")
    with captured_logs() as logs:
        async with scheduled(stage, name, plan(cron="0 * * * *", **fields)):
            await fire(stage, name)
            (refused,) = await came_of(stage, name, "refused")
    assert detail in refused.detail
    assert await opened(stage, refused.request.partition("_")[0]) == []
    assert "schedule_refused" in [each["event"] for each in logs]
    assert await stage.types(refused.request) in ([], ["request.refused"])


async def test_no_schedule_ticks_while_the_mesh_is_frozen_and_the_thaw_makes_up_for_one(stage: Stage) -> None:
    guard = await stage.guard()
    await stage.ready(guard)
    async with scheduled(stage, "freezes", plan(overlap="allow")):
        await came_of(stage, "freezes", "submitted")
        await frozen(stage)
        before = (await ticks(stage, "freezes"))[-1]
        over = before.at + 5_000_000
        await until(lambda: guard._context.now() > over)
        during = [each.at for each in await ticks(stage, "freezes") if each.at > before.at]
        assert len(during) <= 1  # one that was in hand
        await thawed(stage)
        await came_of(stage, "freezes", "submitted", 2 + len(during))
        made_up = [each.at for each in await ticks(stage, "freezes") if each.outcome == "submitted"]
        assert not [at for at in made_up if max((before.at, *during)) < at < over - 1_000_000]


async def test_while_the_mesh_is_frozen_one_timer_of_a_schedule_waits_however_often_guards_look(
    stage: Stage,
) -> None:
    guard = await a_guard_that_arms_when_told(stage)
    async with scheduled(stage, "waits", plan(overlap="allow")):
        await came_of(stage, "waits", "submitted")
        await frozen(stage)

        async def fired() -> bool:
            return await timers(stage, "waits") == (0, 1)

        await eventually(fired)
        before = len(await came_of(stage, "waits", "submitted"))
        for _ in range(3):
            await guard._schedules._arm_all()
        assert await fired()
        await thawed(stage)
        done = await came_of(stage, "waits", "submitted", before + 2)
    assert len({each.at for each in done}) == len(done)
    requests = await opened(stage)
    assert len(set(requests)) == len(requests)


async def test_what_came_and_fell_due_while_the_mesh_was_frozen_is_armed_at_the_thaw(stage: Stage) -> None:
    guard = await a_guard_that_arms_when_told(stage)
    admin = await stage.bus("admin")
    await frozen(stage)
    async with scheduled(stage, "came", plan(overlap="allow")) as schedule:
        at = guard._context.now() + 1_000_000
        once = await ops.schedules.submit_at(admin, schedule.submit, at, client="c1", by="ada")
        (came,) = [each for each in await stored_schedules(admin) if each.name == "came"]
        over = max(at, came.due or 0)
        await until(lambda: guard._context.now() > over)
        for _ in range(3):
            await guard._schedules._arm_all()
        assert await timers(stage, "came") == await timers(stage, once.schedule) == (0, 0)
        await thawed(stage)
        await came_of(stage, once.schedule, "submitted")
        done = await came_of(stage, "came", "submitted", 2)
    assert len({each.at for each in done}) == len(done)
    requests = await opened(stage)
    assert len(set(requests)) == len(requests)
    assert once.request in requests


async def test_pause_stops_a_schedule_and_resume_lets_it_go_on_from_then(stage: Stage) -> None:
    await stage.ready(await stage.guard())
    admin = await stage.bus("admin")
    async with scheduled(stage, "pauses", plan(overlap="allow")):
        await came_of(stage, "pauses", "submitted")
        paused = await ops.schedules.pause(admin, "pauses", by="ada")
        assert (paused.paused, paused.due) == (True, None)
        await fire(stage, "pauses")
        before = await ticks(stage, "pauses")
        resumed = await ops.schedules.resume(admin, "pauses", by="ada")
        assert resumed.due is not None
        await came_of(stage, "pauses", "submitted", 1 + sum(t.outcome == "submitted" for t in before))
        after = (await ticks(stage, "pauses"))[len(before) :]
        assert after[0].at >= resumed.due


async def test_run_now_submits_beside_the_calendar(stage: Stage) -> None:
    await stage.ready(await stage.guard())
    admin = await stage.bus("admin")
    async with scheduled(stage, "now", plan(cron="@yearly")):
        await ops.schedules.pause(admin, "now", by="ada")
        ran = await ops.schedules.run_now(admin, "now")
        event = is_((await stage.reaches(ran.request, "request.opened"))[0], RequestOpened)
        assert (event.client, ran.client) == ("c1", "c1")
        assert await ticks(stage, "now") == []
        await ops.schedules.resume(admin, "now", by="ada")
