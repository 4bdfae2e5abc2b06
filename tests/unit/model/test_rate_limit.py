"""How fast a model is asked by one process, and that a vendor's pause is for all of it."""

import asyncio
import math
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest

from mesh.bus import rate_limit
from mesh.bus.rate_limit import LONGEST_ASKED_S, HeldBack, RateLimiter
from mesh.fleet.file import FleetFileError, parse_fleet
from mesh.model.anthropic import ClaudeModel
from mesh.model.port import Prompt
from mesh.model.vendor import ModelRetry
from mesh.testing.claude_stub import Answer, StubClaude, fails, says
from protocol.wire.config import ModelLimits
from tests.certain import known
from tests.servers import until

PROMPT = Prompt(agent="a", instructions="Help.", brief="You are: a")
FLEET = 'name = "f"\nentry = "a"\n[agents.a]\n[models.claude-x]\n'


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    async def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        self.now += delay_s

    def limiter(self, **limits: int) -> RateLimiter:
        return RateLimiter("m", ModelLimits(**limits), clock=lambda: self.now, sleep=self.sleep)


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_no_more_requests_are_under_way_than_may_be_and_they_go_in_their_order() -> None:
    clock = Clock()
    own = clock.limiter(concurrency=2)
    running: list[int] = []
    order: list[int] = []
    most = 0
    go_on = asyncio.Event()

    async def one(number: int) -> None:
        nonlocal most
        async with own.room(30):
            running.append(number)
            order.append(number)
            most = max(most, len(running))
            await go_on.wait()
            running.remove(number)

    tasks = [asyncio.create_task(one(number)) for number in range(6)]
    while len(running) < 2:  # noqa: ASYNC110 - what is watched sets no event
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert running == [0, 1]
    go_on.set()
    await asyncio.gather(*tasks)
    assert most == 2
    assert order == list(range(6))


async def test_a_request_that_fails_or_is_given_up_makes_room(clock: Clock) -> None:
    own = clock.limiter(concurrency=1)
    for error in (ValueError, asyncio.CancelledError):
        with pytest.raises(error):
            async with own.room(30):
                raise error
    async with own.room(30):
        waiting = asyncio.create_task(own.room(30).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with own.room(30):
        pass


async def test_no_more_begin_in_a_minute_than_may(clock: Clock) -> None:
    own = clock.limiter(per_minute=3)
    begun = []
    for _ in range(7):
        async with own.room(30):
            begun.append(clock.now)
    assert begun == [1000, 1000, 1000, 1060, 1060, 1060, 1120]


async def test_a_pause_holds_everything_back_a_little_longer_than_was_asked(clock: Clock) -> None:
    own = clock.limiter()
    own.hold(8.0)
    own.hold(2.0)  # a shorter one ends no longer one
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(own.room(30))
    assert len(clock.slept) == 1
    assert 8.0 <= clock.slept[0] <= 10.0


async def test_without_a_word_of_the_vendors_each_pause_is_twice_the_one_before(clock: Clock) -> None:
    own = clock.limiter()
    for least in (1.0, 2.0, 4.0):
        own.hold(None)
        async with own.room(30):
            pass
        assert least <= clock.slept.pop() <= least * 1.25
    own.answered()
    own.hold(None)
    async with own.room(30):
        pass
    assert clock.slept.pop() <= 1.25


async def test_a_long_pause_is_not_waited_for(clock: Clock) -> None:
    own = clock.limiter()
    own.hold(3600.0)
    with pytest.raises(HeldBack, match="asked for a pause") as held:
        async with own.room(30):
            pass
    assert 3600.0 <= known(held.value.after_s) <= 4500.0
    assert clock.slept == []


@pytest.mark.parametrize("asked", [math.inf, 1e308, 99_999_999.0])
async def test_a_pause_ends_within_the_hour_whatever_was_asked(clock: Clock, asked: float) -> None:
    own = clock.limiter()
    own.hold(asked)
    clock.now += LONGEST_ASKED_S * 1.25
    async with own.room(30):
        pass
    assert clock.slept == []


@pytest.mark.parametrize("asked", [math.inf, math.nan])
async def test_a_pause_that_is_no_number_was_not_asked_for(clock: Clock, asked: float) -> None:
    own = clock.limiter()
    own.hold(asked)
    async with own.room(30):
        pass
    assert 1.0 <= clock.slept[0] <= 1.25


async def test_the_pause_does_not_grow_for_ever(clock: Clock) -> None:
    own = clock.limiter()
    for _ in range(3000):
        own.hold(None)
    async with own.room(30):
        pass
    assert 30.0 <= clock.slept[0] <= 37.5


async def test_whoever_will_not_wait_does_not_even_wait_behind_those_who_do(clock: Clock) -> None:
    own = clock.limiter(concurrency=1)
    async with own.room(30):
        patient = asyncio.create_task(own.room(30).__aenter__())
        await asyncio.sleep(0)
        own.hold(8.0)
        with pytest.raises(HeldBack, match="asked for a pause"):
            async with own.room(30, longest_hold_s=0):
                pass
        patient.cancel()
        await asyncio.gather(patient, return_exceptions=True)
    assert clock.slept == []


async def test_after_the_vendors_no_nothing_more_is_asked_of_this_model_and_others_are() -> None:
    async with StubClaude([fails(429, retry_after_s=3600), says("other")]) as stub:
        model = ClaudeModel("one", base_url=stub.url, api_key="stub")
        other = ClaudeModel("two", base_url=stub.url, api_key="stub")
        with pytest.raises(ModelRetry, match="status 429") as first:
            await model.reply(PROMPT)
        assert first.value.after_s == 3600
        with pytest.raises(ModelRetry, match="asked for a pause") as second:
            await model.reply(PROMPT)
        assert second.value.after_s is not None
        assert len(stub.asked) == 1
        assert (await other.reply(PROMPT)).text == "other"
        await model.close()
        await other.close()


async def test_twenty_turns_at_once_do_not_run_at_the_vendor_together() -> None:
    rate_limit.configure({"one": ModelLimits(concurrency=3)})
    under_way, most, go_on = 0, 0, asyncio.Event()

    async def answer(body: Mapping[str, Any]) -> Answer:
        nonlocal under_way, most
        if body["model"] == "one":
            under_way += 1
            most = max(most, under_way)
            await go_on.wait()
            under_way -= 1
        return says("ok")

    async with StubClaude(answer) as stub:
        model = ClaudeModel("one", base_url=stub.url, api_key="stub")
        probe = ClaudeModel("probe", base_url=stub.url, api_key="stub")
        asking = [asyncio.create_task(model.reply(PROMPT)) for _ in range(20)]
        await until(lambda: under_way >= 3)
        for _ in range(5):  # whatever else was on its way arrives before these do
            await probe.reply(PROMPT)
        go_on.set()
        replies = await asyncio.gather(*asking)
        await model.close()
        await probe.close()
    assert [reply.text for reply in replies] == ["ok"] * 20
    assert most == 3


def test_the_fleet_file_says_it() -> None:
    fleet = parse_fleet(FLEET + "concurrency = 40\nper_minute = 600\n").fleet
    assert fleet.models == {"claude-x": ModelLimits(concurrency=40, per_minute=600)}


@pytest.mark.parametrize("line", ["concurrency = 0", "per_minute = 0", "instances = 20", "rpm = 3"])
def test_what_makes_no_sense_is_said(line: str) -> None:
    with pytest.raises(FleetFileError, match=r"models\.claude-x"):
        parse_fleet(f"{FLEET}{line}\n")
