"""`mesh log trim-steps`: room among the journals, and nothing else is lost."""

import time
from collections.abc import Awaitable, Callable

import pytest

from mesh.bus.reader import every
from mesh.cli.exits import Exit
from mesh.errors import StreamFull
from mesh.ops import log as trimming
from protocol.wire import subjects
from protocol.wire.ids import request_id
from protocol.wire.moves import Complete
from tests.guard.stage import Stage
from tests.system.office import Office

Put = Callable[[str, int], Awaitable[None]]


@pytest.fixture
def put(stage: Stage) -> Put:
    async def steps(request: str, count: int) -> None:
        bus = await stage.bus("a")
        for n in range(count):
            await bus.publish_durable(subjects.step("a", request, "t", f"0-{n}"), b"{}")

    return steps


async def left(stage: Stage) -> dict[str, int]:
    found: dict[str, int] = {}
    async for kept in every(await stage.bus("admin"), "STEPS-a", "mesh.step.>"):
        request = kept.subject.split(".")[3]
        found[request] = found.get(request, 0) + 1
    return found


async def ended(stage: Stage) -> str:
    request = await (await stage.client()).submit("hello")
    a = await stage.actor("a")
    await a.propose(request, await a.work(request), Complete(answer="done"))
    await stage.reaches(request, "request.completed")
    return request


async def test_steps_of_requests_that_are_over_go_and_all_others_stay(
    stage: Stage, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.guard()
    over, open_ = await ended(stage), await (await stage.client()).submit("hello")
    await stage.reaches(open_, "request.opened")
    old = request_id("c1", int((time.time() - 3 * trimming.LEAST_S) * 1000), bytes(10))
    ahead = request_id("c1", int((time.time() + 3 * trimming.LEAST_S) * 1000), bytes(10))
    young = (await stage.client()).new_id()
    rubbish = "x" * 100
    for request in (over, open_, old, young, ahead):
        await put(request, 3)
    await (await stage.bus("a")).publish_durable(f"mesh.step.a.{rubbish}.t.0-0", b"{}")
    await (await stage.bus("a")).publish_durable("mesh.step.a.*.t.0-0", b"{}")
    log = await stage.bodies(over)
    admin = await stage.bus("admin")

    async def trim(**how: bool) -> set[str]:
        return {each.request async for each in trimming.trim_steps(admin, older_than_s=0, **how)}

    assert await trim() == {old, ahead, rubbish}, "what has just ended may still be worked on"
    monkeypatch.setattr(trimming, "LEAST_S", 0.0)
    before = await left(stage)
    assert before == {over: 3, open_: 3, young: 3, "*": 1}, "a wildcard would take out every journal"
    assert await trim(dry_run=True) >= {over}
    assert await left(stage) == before
    await trim()
    assert (await left(stage)).get(over) is None
    assert (await left(stage))[open_] == 3
    assert await stage.bodies(over) == log


async def test_a_full_stream_of_journals_takes_steps_again(stage: Stage, put: Put, office: Office) -> None:
    admin = await stage.bus("admin")
    config = (await admin.api("STREAM.INFO.STEPS-a"))["config"]
    old = request_id("c1", int((time.time() - 3 * trimming.LEAST_S) * 1000), bytes(range(10)))
    await put(old, 50)
    most = (await stage.state("STEPS-a"))["messages"]
    await admin.api("STREAM.UPDATE.STEPS-a", {**config, "max_msgs": most})
    try:
        with pytest.raises(StreamFull):
            await put((await stage.client()).new_id(), 1)
        would = ("log", "trim-steps", "--older-than", "1h", "--dry-run", "--json")
        told = (await office.mesh(*would, who="admin")).json
        assert {"request": old, "steps": 50} in told["requests"]
        assert told["dry_run"] is True
        done = await office.mesh("log", "trim-steps", "--older-than", "1h", who="admin")
        assert done.status == Exit.DONE
        assert f"{old}  50 steps  can then no longer be replayed" in done.out
        await put((await stage.client()).new_id(), 1)
    finally:
        await admin.api("STREAM.UPDATE.STEPS-a", config)


async def test_only_the_admin_makes_room_and_not_among_what_is_young(
    stage: Stage, put: Put, office: Office
) -> None:
    old = request_id("c1", int((time.time() - 300 * trimming.LEAST_S) * 1000), bytes(10))
    await put(old, 1)
    assert (await office.mesh("log", "trim-steps", who="op")).status == Exit.USAGE
    assert (await office.mesh("log", "trim-steps", "--older-than", "10m", who="admin")).status == Exit.USAGE
    assert (await left(stage))[old] == 1
