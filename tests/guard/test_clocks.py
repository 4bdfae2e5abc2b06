"""Guards whose machines have wrong clocks: they decide by the server's, and nobody notices."""

import time
from collections.abc import Callable

import msgspec
import pytest

from mesh.guard.clock import MOST_US
from mesh.ops.health import Look, run
from protocol.wire import events, subjects
from protocol.wire.commands import Failure, ReportFailure
from protocol.wire.config import Policy
from protocol.wire.moves import Complete
from tests.certain import is_, known
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, eventually

HOUR_S = 3600.0


CLOCK = "clock"
BY_NTP = "run NTP on its machine"


def off_by(seconds: float) -> Callable[[], int]:
    """Return a machine's clock that is so far ahead; behind, if it is negative."""
    return lambda: time.time_ns() // 1000 + round(seconds * 1e6)


async def write(stage: Stage, policy: Policy) -> None:
    await (await stage.bus("admin")).publish_durable(
        subjects.policy(policy.name), msgspec.json.encode(policy)
    )


@pytest.mark.parametrize("seconds", [-600.0, 2 * HOUR_S])
async def test_new_requests_are_new_and_answered_ones_in_time_whatever_a_guards_clock_says(
    stage: Stage, seconds: float
) -> None:
    await write(stage, Policy(name="hour", deadline_s=HOUR_S))
    await stage.ready(await stage.guard("wrong", clock=off_by(seconds)))
    await stage.ready(await stage.guard("right"))
    client, a = await stage.client(), await stage.actor("a", served=True)
    before = await stage.last_seq("DEAD")
    requests = [await client.submit(f"job {n}", policy="hour") for n in range(20)]
    for request in requests:
        await a.propose(request, await a.work(request), Complete(answer="done"))
    for request in requests:
        assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"
        assert await stage.types(request) == ["request.opened", "request.completed"]
    assert await stage.last_seq("DEAD") == before


async def test_a_retry_comes_in_its_time_when_guards_with_two_clocks_share_a_request(stage: Stage) -> None:
    ahead = await stage.guard("ahead", clock=off_by(240.0))
    await stage.ready(ahead)
    client, a = await stage.client(), await stage.actor("a", served=True)
    request = await client.submit("hello", policy="eager")
    work = await a.work(request)
    await stage.ready(await stage.guard("behind", clock=off_by(-240.0)))
    await stage.dismiss(ahead)
    await a.say(request, ReportFailure(turn=work.turn, round=0, error=Failure(code="boom")))
    log = await stage.reaches(request, "turn.retried")
    failed = is_(log[1], events.TurnFailed)
    assert known(failed.retry_at) - failed.at <= 20_000
    assert abs(log[0].at - time.time_ns() // 1000) < 60e6


async def test_rounds_end_in_their_time_where_the_only_guard_is_behind(stage: Stage) -> None:
    await stage.ready(await stage.guard("behind", clock=off_by(-240.0)))
    client = await stage.client()
    await stage.actor("a", served=True)
    request = await client.submit("hello", policy="brisk")
    await stage.reaches(request, "escalation.raised")


async def test_a_timer_that_fires_before_its_time_is_not_armed_again(stage: Stage) -> None:
    """A guard that goes by a clock four minutes behind its server's, and cannot know better."""
    behind = await stage.guard("behind", now=off_by(-240.0))
    await stage.ready(behind)
    client = await stage.client()
    await stage.actor("a", served=True)
    request = await client.submit("hello", policy="brisk")
    await stage.reaches(request, "request.opened")

    async def came_again() -> bool:
        info = await (await stage.bus("admin")).api("CONSUMER.LIST.TIMER")
        return any(each["num_redelivered"] for each in info["consumers"])

    await eventually(came_again)
    assert await stage.schedule(request) is None  # it waits in the queue
    assert await stage.types(request) == ["request.opened"]
    await stage.dismiss(behind)
    await stage.ready(await stage.guard("right"))
    await stage.reaches(request, "escalation.raised")


@pytest.mark.parametrize("who", ["op", "admin"])
async def test_doctor_shows_each_guards_clock_and_names_the_wrong_ones(stage: Stage, who: str) -> None:
    await stage.ready(await stage.guard("behind", wall=off_by(-600.0)))
    await stage.ready(await stage.guard("ahead", wall=off_by(2.5)))
    await stage.ready(await stage.guard("right", wall=off_by(1.0)))
    told = {
        each.text.partition("guard ")[2].partition(" ")[0]: each
        for each in await run(CLOCK, Look(await stage.bus(who)))
        if "guard " in each.text
    }
    assert {name: each.state for name, each in told.items()} == {
        "ahead": "found",
        "behind": "found",
        "right": "ok",
    }
    assert " behind the server's" in told["behind"].text
    assert " ahead of the server's" in told["ahead"].text
    assert [BY_NTP in told[name].text for name in ("ahead", "behind", "right")] == [True, True, False]


async def test_doctor_names_a_guard_whose_servers_disagree(stage: Stage) -> None:
    guard = await stage.guard("between")
    await stage.ready(guard)
    clock = guard._context.clock
    own = clock._own()
    clock._learn("another", clock() + 2 * MOST_US, own, own)
    texts = [each.text for each in await run(CLOCK, Look(await stage.bus("op"))) if each.state == "found"]
    assert [text for text in texts if "run NTP on each of them" in text and "guard between finds" in text]


async def test_who_may_not_ask_guards_is_told_so(stage: Stage) -> None:
    await stage.ready(await stage.guard("right"))
    states = [each.state for each in await run(CLOCK, Look(await stage.bus("audit")))]
    assert states == ["ok", "unknown"]
