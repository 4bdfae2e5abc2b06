"""A later round closes the earlier ones: what still runs there does nothing more, and nothing is missed."""

import asyncio
from typing import Any

import pytest

from mesh.agent._effects import run_effect
from mesh.agent._journal import Journal
from mesh.agent._steps import RoundKey
from mesh.agent.errors import Fenced
from mesh.testing import MemorySteps
from tests.unit.agent.journals import Held, World, call, journal


async def test_an_effect_is_not_tried_once_fenced() -> None:
    store, world = MemorySteps(), World()
    late, other = journal(store, nonce="late"), journal(store, nonce="other")
    await late.load()
    await run_effect(other, call("pay", kind="effect"), "k", world.doing("pay"), again=None)
    with pytest.raises(Fenced):
        await run_effect(late, call("pay", kind="effect"), "k", world.doing("pay late"), again=None)
    assert world.done == ["pay"]


async def test_a_later_rounds_first_step_fences_whoever_still_runs_the_earlier_one() -> None:
    store, world = MemorySteps(), World()
    earlier = journal(store)
    await earlier.step(call("a"), world.doing("a"))
    await journal(store, round_=1, nonce="n2").step(call("x"), world.doing("x"))
    with pytest.raises(Fenced):
        await run_effect(earlier, call("pay", kind="effect"), "k", world.doing("pay"), again=None)
    assert world.done == ["a", "x"]


async def test_an_effect_that_begins_while_a_later_round_thinks_is_not_done_twice() -> None:
    store, world = MemorySteps(), World()
    effect = call("pay", kind="effect")
    earlier, later = journal(store), journal(store, round_=1, nonce="n2")
    await earlier.step(call("a"), world.doing("a"))
    thinking = Held("thought")
    first = asyncio.create_task(later.step(call("think", kind="model"), thinking))
    await thinking.begun.wait()
    with pytest.raises(Fenced):  # its time ran out, and it does not know
        await run_effect(earlier, effect, "k", world.doing("pay"), again=None)
    thinking.may_end.set()
    await first
    await run_effect(later, effect, "k", world.doing("pay"), again=None)
    assert world.done.count("pay") == 1


async def test_a_step_that_is_overtaken_by_another_one_of_its_round_is_fenced_too() -> None:
    store, world = MemorySteps(), World()
    earlier, later = journal(store), journal(store, round_=1, nonce="n2")
    reading = Held("read")
    read = asyncio.create_task(earlier.step(call("slow"), reading))
    await reading.begun.wait()
    await earlier.step(call("a"), world.doing("a"))
    assert await later.step(call("a"), world.doing("a again")) == "a"
    reading.may_end.set()
    with pytest.raises(Fenced):
        await read
    assert world.done == ["a"]


def lasting(store: MemorySteps, nonce: str) -> Journal:
    """Return a journal whose holder has a lease, and so looks if it has lost it."""
    return Journal(store, RoundKey("a", "r", "t", 0), nonce=nonce, version="1", lease_s=1.0)


async def test_no_model_is_asked_what_another_instance_of_the_round_was_told_meanwhile() -> None:
    store, world = MemorySteps(), World()
    slow, other = lasting(store, "slow"), journal(store, nonce="other")
    await slow.load()
    await slow.require_held()
    await other.step(call("think", kind="model"), world.doing("think"))
    with pytest.raises(Fenced):
        await slow.require_held()


async def test_what_is_known_or_ones_own_fences_nobody() -> None:
    store, world = MemorySteps(), World()
    await journal(store, nonce="before").step(call("a"), world.doing("a"))
    own = lasting(store, "own")
    await own.step(call("a"), world.doing("a again"))
    await own.step(call("b"), world.doing("b"))
    await own.require_held()
    assert world.done == ["a", "b"]


class Overtaken(MemorySteps):
    """Between a later round's reading and its fence, the earlier round writes one thing more."""

    def __init__(self) -> None:
        super().__init__()
        self.between: Any = None

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        if b'"fence"' in body and self.between is not None:
            between, self.between = self.between, None
            await between()
        await super().put(request, turn, name, body)


async def test_an_effect_that_slips_in_before_the_fence_is_known_behind_it() -> None:
    store, world = Overtaken(), World()
    effect = call("pay", kind="effect")
    earlier, later = journal(store), journal(store, round_=1, nonce="n2")
    await earlier.step(call("a"), world.doing("a"))
    store.between = lambda: run_effect(earlier, effect, "k", world.doing("pay"), again=None)
    assert await run_effect(later, effect, "k", world.doing("pay again"), again=None) == "pay"
    assert world.done == ["a", "pay"]


async def test_an_effect_beside_other_steps_is_fenced_by_the_places_that_they_left_free() -> None:
    store, world = MemorySteps(), World()
    effect = call("pay", kind="effect")
    earlier = journal(store)
    reading = Held()
    read = asyncio.create_task(earlier.step(call("slow"), reading))
    await reading.begun.wait()
    await journal(store, round_=1, nonce="n2").step(call("x"), world.doing("x"))
    with pytest.raises(Fenced):  # its own place is free, but not the one that the slow step is to have
        await run_effect(earlier, effect, "k", world.doing("pay"), again=None)
    reading.may_end.set()
    with pytest.raises(Fenced):
        await read
    assert world.done == ["x"]
