"""Time is data: each wait that ends brings one event, whichever of the guards looks, and however often."""

import asyncio

import pytest_asyncio

from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.bus.reader import last
from mesh.bus.stores import arm_schedule
from protocol.wire import events, subjects
from protocol.wire.commands import Freeze, Thaw
from protocol.wire.config import PARTITIONS
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.moves import Move
from tests.certain import is_, known
from tests.guard.stage import Stage, human_turn
from tests.servers import PATIENCE_S, eventually, until


@pytest_asyncio.fixture(autouse=True)
async def _guards(stage: Stage) -> None:
    """Two guards, so that whatever is written twice is found out."""
    await stage.guard("g1")
    await stage.guard("g2")


def of(log: list[AnyEvent], type_: str) -> list[AnyEvent]:
    return [event for event in log if type_of(event) == type_]


async def test_a_round_of_a_served_agent_that_takes_too_long_fails_and_is_tried_again(stage: Stage) -> None:
    client, a = await stage.client(), await stage.actor("a", served=True)
    request = await client.submit("hello", policy="brisk")
    log = await stage.reaches(request, "escalation.raised")
    assert [type_of(event) for event in log] == [
        "request.opened",
        "turn.failed",
        "turn.retried",
        "turn.failed",
        "escalation.raised",
    ]
    first, retried, second = log[1], log[2], log[3]
    assert isinstance(first, events.TurnFailed)
    assert isinstance(second, events.TurnFailed)
    assert (first.error.code, second.error.code) == ("timeout", "timeout")
    assert not known(first.grounds).unbegun  # the agent took it, and said nothing
    assert first.at - log[0].at >= 250_000
    assert retried.at >= (first.retry_at or 0)
    assert human_turn(log).reason == "timeout"
    assert (await a.work(request, round_=1)).past[0].how == "failed"


async def test_a_round_waits_for_an_agent_that_nobody_serves_and_its_time_counts_once_it_is_there(
    stage: Stage,
) -> None:
    client, looks = await stage.client(), await stage.last_seq("TIMER")
    request = await client.submit("hello", policy="lenient")
    seqs: list[int] = []

    async def looked_in_vain() -> bool:
        seqs.append(await stage.last_seq("TIMER"))
        return seqs[-1] >= looks + 5  # armed, fired, armed, fired, armed

    await eventually(looked_in_vain)
    assert await stage.types(request) == ["request.opened"]
    await stage.actor("a", served=True)
    failed = is_((await stage.reaches(request, "turn.failed"))[1], events.TurnFailed)
    assert failed.error.code == "timeout"
    await client.cancel(request)
    await client.wait(request, timeout_s=PATIENCE_S)


async def test_jobs_that_waited_for_their_agent_have_their_whole_time_when_it_is_back(stage: Stage) -> None:
    """Nor does one time out behind the others, as long as the queue moves: the last waits 3 s, and has 2."""
    client, looks = await stage.client(), await stage.last_seq("TIMER")
    requests = [await client.submit(f"job {n}", policy="queued") for n in range(20)]

    async def all_looked_at_in_vain() -> bool:
        return await stage.last_seq("TIMER") >= looks + 3 * len(requests)  # armed, fired, armed

    await eventually(all_looked_at_in_vain)
    done: list[str] = []

    async def work(turn: Turn) -> Move:
        await asyncio.sleep(0.15)
        done.append(turn.request)
        return turn.complete("done")

    await stage.runtime(Agent("a", work, concurrency=1))
    for request in requests:
        assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"
        assert await stage.types(request) == ["request.opened", "request.completed"]
    assert sorted(done) == sorted(requests)


async def test_a_round_in_a_queue_that_does_not_move_times_out(stage: Stage) -> None:
    client = await stage.client()
    stuck = asyncio.Event()
    begun: list[str] = []

    async def hang(turn: Turn) -> Move:
        begun.append(turn.request)
        await stuck.wait()
        return turn.complete("at last")

    runtime = await stage.runtime(Agent("a", hang, concurrency=1))
    first = await client.submit("hello")  # it keeps the only place for as long as the test likes
    await until(lambda: begun == [first])
    queued = await client.submit("hello", policy="brisk")
    failed = is_((await stage.reaches(queued, "turn.failed"))[1], events.TurnFailed)
    assert failed.error.code == "timeout"
    assert failed.grounds is not None
    assert failed.grounds.unbegun
    assert failed.at - known(failed.grounds.served_since) >= 250_000
    await stage.reaches(queued, "escalation.raised")
    await until(lambda: failed.turn in runtime._executor.running.noted_ends)
    stuck.set()
    assert (await client.wait(first, timeout_s=PATIENCE_S)).answer == "at last"
    assert first in begun
    assert queued not in begun


async def test_a_requests_deadline_ends_it_and_tells_its_agent(stage: Stage) -> None:
    client, a = await stage.client(), await stage.actor("a", served=True)
    told = await stage.notices("a")
    request = await client.submit("hello", policy="short")
    work = await a.work(request)
    outcome = await client.wait(request, timeout_s=PATIENCE_S)
    assert outcome.status == "expired"
    assert await stage.types(request) == ["request.opened", "request.expired"]
    await until(lambda: any(notice.ended and notice.ended.turn == work.turn for notice in told))
    ended = await (await stage.bus("a")).request(f"$JS.API.DIRECT.GET.ENDS.mesh.end.a.{request}.{work.turn}")
    assert b"request.expired" in ended.data


async def test_a_timer_of_a_request_that_was_never_opened_fires_for_nothing(stage: Stage) -> None:
    """A guard arms it together with the first event, and may die before that is stored."""
    client, guard = await stage.client(), await stage.bus("guard", "died")
    request = client.new_id()
    await arm_schedule(guard, request, 1, PARTITIONS, after=0)
    admin, fired = await stage.bus("admin"), subjects.timer_fire(request, PARTITIONS)

    async def is_over() -> bool:
        left = await last(admin, "TIMER", fired, leader=True)
        return left is None and await stage.schedule(request) is None

    await eventually(is_over)
    assert await stage.bodies(request) == []
    assert request not in {letter.request for letter in await stage.dead_letters()}
    other = await client.submit("hello")
    await stage.reaches(other, "request.opened")


async def test_a_frozen_request_fails_no_round_and_its_time_goes_on_after_the_thaw(stage: Stage) -> None:
    client = await stage.client()
    await stage.actor("a", served=True)
    request = await client.submit("hello", policy="queued")
    await stage.reaches(request, "request.opened")
    await stage.control(request, Freeze(id="f"))
    frozen = (await stage.reaches(request, "request.frozen"))[-1]
    other = await client.submit("hello", policy="queued")
    await stage.reaches(other, "turn.failed")  # so long that the frozen one's time would be over too
    await stage.control(request, Thaw(id="t"))
    thawed = (await stage.reaches(request, "request.thawed"))[2]
    log = await stage.reaches(request, "turn.failed")
    assert [type_of(event) for event in log[:4]] == [
        "request.opened",
        "request.frozen",
        "request.thawed",
        "turn.failed",
    ]
    assert log[3].at - log[0].at >= 2_000_000 + thawed.at - frozen.at
