"""The journal: recorded before it is used, replayed in order, reused by later rounds, one writer."""

import asyncio
from typing import Any

import pytest

from mesh.agent import tool
from mesh.agent._effects import run_effect
from mesh.agent._steps import WINDOW, Recorded
from mesh.agent.errors import JournalFull, JournalMismatch, RoundOver
from mesh.testing import MemorySteps
from tests.unit.agent.journals import World, call, given, journal


async def test_another_order_within_a_round_is_a_mismatch_that_names_the_step() -> None:
    store, world = MemorySteps(), World()
    first = journal(store)
    await first.step(call("a"), world.doing("a"))
    await first.step(call("b"), world.doing("b"))
    second = journal(store, nonce="n2")
    with pytest.raises(JournalMismatch, match="step 0-0 was call a, the code now calls call b") as caught:
        await second.step(call("b"), world.doing("b again"))
    assert not caught.value.permanent
    assert world.done == ["a", "b"]


async def test_a_later_round_reuses_successful_steps_in_any_order_and_runs_the_rest() -> None:
    store, world = MemorySteps(), World()
    first = journal(store)
    await first.step(call("a"), world.doing("a"))
    await first.step(call("b"), world.doing("b"))
    second = journal(store, round_=1, nonce="n2")
    assert await second.step(call("b"), world.doing("b again")) == "b"
    assert await second.step(call("c"), world.doing("c")) == "c"
    assert await second.step(call("a"), world.doing("a again")) == "a"
    assert await second.step(call("a"), world.doing("a anew")) == "a anew"
    assert world.done == ["a", "b", "c", "a anew"]


async def test_a_round_delivered_again_replays_reused_and_own_steps_alike() -> None:
    store, world = MemorySteps(), World()
    await journal(store).step(call("a"), world.doing("a"))
    for nonce in ("n2", "n3"):
        again = journal(store, round_=1, nonce=nonce)
        assert await again.step(call("a"), world.doing("never")) == "a"
        assert await again.step(call("b"), world.doing("b")) == "b"
    assert world.done == ["a", "b"]


async def test_a_tools_no_is_an_outcome_that_is_said_again() -> None:
    store = MemorySteps()

    async def no() -> None:
        raise Recorded("tool.error", "not today")

    with pytest.raises(Recorded, match="not today"):
        await journal(store).step(call("a"), no)

    async def never() -> None:
        raise AssertionError("was run again")

    with pytest.raises(Recorded, match="not today"):
        await journal(store, nonce="n2").step(call("a"), never)


async def test_what_broke_is_not_recorded_and_is_run_anew() -> None:
    store, world = MemorySteps(), World()

    async def broken() -> None:
        raise OSError("the network")

    with pytest.raises(OSError, match="the network"):
        await journal(store).step(call("a"), broken)
    assert await journal(store, round_=1, nonce="n2").step(call("a"), world.doing("a")) == "a"


async def test_the_digest_tells_what_was_called_in_which_order() -> None:
    one, other = journal(MemorySteps()), journal(MemorySteps())
    world = World()
    assert one.tally.steps == 0
    await one.step(call("a"), world.doing("a"))
    await one.step(call("b"), world.doing("b"))
    await other.step(call("b"), world.doing("b"))
    await other.step(call("a"), world.doing("a"))
    assert one.tally.steps == 2
    assert one.tally.digest != other.tally.digest


async def test_a_mismatch_in_the_arguments_alone_says_so() -> None:
    store, world = MemorySteps(), World()
    await journal(store).step(call("a", "d1"), world.doing("a"))
    with pytest.raises(
        JournalMismatch, match="step 0-0 was call a, the code now calls call a with other arguments"
    ):
        await journal(store, nonce="n2").step(call("a", "d2"), world.doing("a again"))


async def test_more_steps_at_once_than_a_reader_looks_ahead_are_all_found_again() -> None:
    store, world = MemorySteps(), World()
    names = [f"s{n}" for n in range(3 * WINDOW)]

    def slow(name: str) -> Any:
        async def do() -> str:
            for _ in range(len(names) - int(name[1:])):  # the last are the first to be done
                await asyncio.sleep(0)
            world.done.append(name)
            return name

        return do

    first = journal(store)
    await asyncio.gather(*(first.step(call(name), slow(name)) for name in names))
    again = journal(store, nonce="n2")
    assert await asyncio.gather(*(again.step(call(name), slow(name)) for name in names)) == names
    assert len(world.done) == len(names)


async def test_steps_that_break_in_a_row_end_the_round_before_a_reader_would_miss_the_rest() -> None:
    store, world = MemorySteps(), World()

    async def broken() -> None:
        raise KeyError

    own = journal(store)
    for _ in range(WINDOW):
        with pytest.raises(KeyError):
            await own.step(call("a"), broken)
    with pytest.raises(JournalFull):
        await own.step(call("a"), world.doing("a"))


async def test_nothing_begins_after_the_move() -> None:
    own, world = journal(MemorySteps()), World()
    await own.finish()
    with pytest.raises(RoundOver):
        await run_effect(own, call("pay", kind="effect"), "k", world.doing("pay"), again=None)
    assert world.done == []


async def test_reading_that_is_left_out_is_no_mismatch() -> None:
    store, world = MemorySteps(), World()
    await journal(store).step(call("a"), world.doing("a"))
    second = journal(store, nonce="n2")
    await second.load()
    await second.finish()


async def test_a_report_has_the_same_digest_whichever_read_ends_first() -> None:
    async def read_both(slow: int, steps: MemorySteps) -> str:
        gate = asyncio.Event()

        @tool
        async def read(n: int) -> int:
            """Read."""
            if n == slow:
                await gate.wait()
            gate.set()
            return n

        made = given(steps)
        await asyncio.gather(
            made.execution.call(read, {"n": 1}, for_model=True),
            made.execution.call(read, {"n": 2}, for_model=True),
        )
        return made.execution.report.digest

    steps = MemorySteps()
    first = await read_both(1, steps)
    assert first == await read_both(1, steps)
    assert first == await read_both(2, MemorySteps())
