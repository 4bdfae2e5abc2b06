"""How fast one process asks a model: its own limits, and what the vendor's refusals make of them."""

import asyncio
import math
import random
from contextlib import AsyncExitStack

import pytest

from mesh.agent import _rate_limit as rate_limit
from mesh.agent._rate_limit import (
    FIRST_PAUSE_S,
    LONGEST_ASKED_S,
    LONGEST_PAUSE_S,
    HeldBack,
    Permit,
    RateLimiter,
)
from mesh.fleet.file import FleetFileError, parse_fleet
from protocol.wire.config import ModelLimits

FLEET = 'name = "f"\nentry = "a"\n[agents.a]\n[models.claude-x]\n'
PATIENT_S = 30.0
AT_ONCE_S = 0.001


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def limiter(self, **limits: int) -> RateLimiter:
        return RateLimiter("m", ModelLimits(**limits), clock=lambda: self.now)


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def fits(own: RateLimiter) -> bool:
    """Return True if another request may be made now."""
    try:
        async with own.room(AT_ONCE_S):
            return True
    except HeldBack:
        return False


async def under_way(own: RateLimiter, held: AsyncExitStack, count: int) -> list[Permit]:
    return [await held.enter_async_context(own.room(PATIENT_S)) for _ in range(count)]


async def most_at_once(own: RateLimiter, up_to: int) -> int:
    async with AsyncExitStack() as held:
        for count in range(up_to):
            if not await fits(own):
                return count
            await held.enter_async_context(own.room(PATIENT_S))
    return up_to


async def test_no_more_requests_are_under_way_than_may_be_and_they_go_in_their_order(clock: Clock) -> None:
    own = clock.limiter(concurrency=2)
    running: list[int] = []
    order: list[int] = []
    most = 0
    go_on = asyncio.Event()

    async def one(number: int) -> None:
        nonlocal most
        async with own.room(PATIENT_S):
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
            async with own.room(PATIENT_S):
                raise error
    async with own.room(PATIENT_S):
        waiting = asyncio.create_task(own.room(PATIENT_S).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert await fits(own)


async def test_no_more_begin_in_a_minute_than_may(clock: Clock) -> None:
    own = clock.limiter(per_minute=3)
    assert [await fits(own) for _ in range(4)] == [True, True, True, False]
    clock.now += 59.9
    assert not await fits(own)
    clock.now += 0.2
    assert [await fits(own) for _ in range(4)] == [True, True, True, False]


async def test_other_limits_hold_at_once(clock: Clock) -> None:
    own = clock.limiter(concurrency=1)
    async with own.room(PATIENT_S):
        waiting = asyncio.create_task(fits_soon(own))
        await asyncio.sleep(0)
        own.configure(ModelLimits(concurrency=2))
        assert await waiting


async def fits_soon(own: RateLimiter) -> bool:
    async with own.room(PATIENT_S):
        return True


async def test_nothing_is_asked_until_the_vendors_pause_is_over(clock: Clock) -> None:
    own = clock.limiter()
    async with own.room(PATIENT_S) as permit:
        pause_s = own.refused(permit, 8.0)
    assert 8.0 <= pause_s <= 8.0 + FIRST_PAUSE_S
    with pytest.raises(HeldBack, match="asked for a pause") as held:
        async with own.room(PATIENT_S):
            pass
    assert held.value.after_s == pytest.approx(pause_s)
    clock.now += pause_s
    assert await fits(own)


async def test_a_shorter_pause_does_not_end_a_longer_one(clock: Clock) -> None:
    own = clock.limiter()
    async with AsyncExitStack() as held:
        first, second = await under_way(own, held, 2)
        own.refused(first, 20.0)
        assert own.refused(second, 2.0) >= 20.0


async def test_whoever_waits_for_room_hears_of_a_pause_that_begins_meanwhile(clock: Clock) -> None:
    own = clock.limiter(concurrency=1)
    async with own.room(PATIENT_S) as permit:
        waiting = asyncio.create_task(own.room(PATIENT_S).__aenter__())
        await asyncio.sleep(0)
        own.refused(permit, 8.0)
        with pytest.raises(HeldBack, match="asked for a pause"):
            await waiting


async def test_without_a_word_of_the_vendors_each_pause_is_twice_the_one_before(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: low)
    own = clock.limiter()
    pauses = []
    for _ in range(7):
        async with own.room(PATIENT_S) as permit:
            pauses.append(own.refused(permit, None))
        clock.now += pauses[-1]
    assert pauses == pytest.approx([1, 2, 4, 8, 16, LONGEST_PAUSE_S, LONGEST_PAUSE_S])
    async with own.room(PATIENT_S) as permit:
        own.answered(permit)
    async with own.room(PATIENT_S) as permit:
        assert own.refused(permit, None) == pytest.approx(FIRST_PAUSE_S)


@pytest.mark.parametrize("asked", [1e308, 99_999_999.0])
async def test_a_pause_ends_within_the_hour_whatever_was_asked(clock: Clock, asked: float) -> None:
    own = clock.limiter()
    async with own.room(PATIENT_S) as permit:
        own.refused(permit, asked)
    clock.now += LONGEST_ASKED_S + FIRST_PAUSE_S
    assert await fits(own)


@pytest.mark.parametrize("asked", [math.inf, math.nan])
async def test_a_pause_that_is_no_number_was_not_asked_for(clock: Clock, asked: float) -> None:
    own = clock.limiter()
    async with own.room(PATIENT_S) as permit:
        assert own.refused(permit, asked) <= 2 * FIRST_PAUSE_S


async def test_a_refusal_halves_what_was_under_way_once_for_a_whole_burst(clock: Clock) -> None:
    own = clock.limiter(concurrency=40)
    async with AsyncExitStack() as held:
        permits = await under_way(own, held, 16)
        for permit in permits:
            own.refused(permit, 1.0)
        assert own.concurrency == 8
    clock.now += 100.0
    assert await most_at_once(own, 20) == 8


async def test_the_next_burst_halves_again_and_one_always_may(clock: Clock) -> None:
    own = clock.limiter(concurrency=40)
    for expected in (8, 4, 2, 1, 1):
        async with AsyncExitStack() as held:
            for permit in await under_way(own, held, min(16, own.concurrency or 16)):
                own.refused(permit, 1.0)
        assert own.concurrency == expected
        clock.now += 100.0


async def test_a_window_of_answers_wins_one_back_up_to_the_limit(clock: Clock) -> None:
    own = clock.limiter(concurrency=6)
    async with AsyncExitStack() as held:
        for permit in await under_way(own, held, 6):
            own.refused(permit, 1.0)
    clock.now += 100.0
    windows = []
    for _ in range(5):
        windows.append(own.concurrency)
        async with AsyncExitStack() as held:
            for permit in await under_way(own, held, windows[-1] or 0):
                own.answered(permit)
    assert windows == [3, 4, 5, 6, 6]
    assert own.concurrency == 6


async def test_an_answer_to_what_was_asked_before_the_refusal_wins_nothing_back(clock: Clock) -> None:
    own = clock.limiter(concurrency=4)
    async with AsyncExitStack() as held:
        permits = await under_way(own, held, 4)
        own.refused(permits[0], 1.0)
        for _ in range(10):
            for permit in permits[1:]:
                own.answered(permit)
        assert own.concurrency == 2


async def test_a_window_that_is_not_used_up_does_not_grow(clock: Clock) -> None:
    own = clock.limiter()
    async with AsyncExitStack() as held:
        own.refused((await under_way(own, held, 8))[0], 1.0)
    clock.now += 100.0
    for _ in range(50):
        async with own.room(PATIENT_S) as permit:
            own.answered(permit)
    assert own.concurrency == 4


async def test_a_model_that_was_never_refused_is_asked_without_a_limit(clock: Clock) -> None:
    assert clock.limiter().concurrency is None


async def test_the_fleets_limits_are_each_models_own() -> None:
    rate_limit.configure({"one": ModelLimits(concurrency=3)})
    assert rate_limit.limiter_of("one").concurrency == 3
    assert rate_limit.limiter_of("two").concurrency is None
    rate_limit.configure({})
    assert rate_limit.limiter_of("one").concurrency is None


def test_the_fleet_file_says_it() -> None:
    fleet = parse_fleet(FLEET + "concurrency = 40\nper_minute = 600\n").fleet
    assert fleet.models == {"claude-x": ModelLimits(concurrency=40, per_minute=600)}


@pytest.mark.parametrize("line", ["concurrency = 0", "per_minute = 0", "instances = 20", "rpm = 3"])
def test_what_makes_no_sense_is_said(line: str) -> None:
    with pytest.raises(FleetFileError, match=r"models\.claude-x"):
        parse_fleet(f"{FLEET}{line}\n")
