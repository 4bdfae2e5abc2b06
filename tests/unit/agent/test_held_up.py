"""An instance that was held up between an effect's intent and its beginning looks who has the turn."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mesh.agent._executor import Attempts
from mesh.agent._journal import Journal
from mesh.agent._step_store import Call
from mesh.agent.errors import Fenced
from mesh.testing import MemorySteps

PAY: Call = ("effect", "pay", "d")


class SlowSteps(MemorySteps):
    """Steps whose writing takes a while, as on a broker that hangs."""

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        await super().put(request, turn, name, body)
        await asyncio.sleep(0.05)


def attempts(store: MemorySteps) -> Attempts:
    return Attempts(store, request="r", turn="t", round_=0)


def journal(store: MemorySteps, is_overtaken: Callable[[], Awaitable[bool]], lease_s: float) -> Journal:
    return Journal(
        store,
        request="r",
        turn="t",
        round_=0,
        nonce="n",
        version="1",
        fresh=True,
        lease_s=lease_s,
        is_overtaken=is_overtaken,
    )


async def pay(store: MemorySteps, own: Attempts, lease_s: float) -> list[str]:
    """Return what was done to the world."""
    done: list[str] = []

    async def produce() -> Any:
        done.append("paid")
        return "ok"

    await journal(store, own.is_overtaken, lease_s).effect(PAY, "key", produce, again=produce)
    return done


async def test_an_effect_whose_intent_took_long_does_not_begin_if_another_took_the_turn_over() -> None:
    store = SlowSteps()
    assert not await attempts(store).is_crash_loop()  # the other one says that it has it
    with pytest.raises(Fenced):
        await pay(store, attempts(store), lease_s=0.05)
    assert [name for _, _, name in store.steps] == ["0-a0", "0-0"]


async def test_it_begins_if_nobody_did() -> None:
    assert await pay(SlowSteps(), attempts(MemorySteps()), lease_s=0.05) == ["paid"]


async def test_nobody_is_asked_about_an_intent_that_was_quick() -> None:
    store = MemorySteps()
    assert not await attempts(store).is_crash_loop()
    assert await pay(store, attempts(store), lease_s=math.inf) == ["paid"]


async def test_an_attempt_is_overtaken_by_later_ones_alone() -> None:
    store = MemorySteps()
    first, second = attempts(store), attempts(store)
    assert not await first.is_crash_loop()
    assert not await first.is_overtaken()
    assert not await second.is_crash_loop()
    assert await first.is_overtaken()
    assert not await second.is_overtaken()


async def test_it_does_not_begin_either_if_a_later_round_has_closed_this_one() -> None:
    store = MemorySteps()
    done: list[str] = []
    own = attempts(store)

    async def later() -> bool:
        """A later round comes, and does it, just as this one looks."""
        other = Journal(store, request="r", turn="t", round_=1, nonce="m", version="1")

        async def produce() -> Any:
            done.append("later")
            return "ok"

        await other.effect(PAY, "key", produce, again=produce)
        return False

    held_up = journal(store, later, 0.0)

    async def produce() -> Any:
        done.append("held up")
        return "ok"

    with pytest.raises(Fenced):
        await held_up.effect(PAY, "key", produce, again=produce)
    assert done == ["later"]
    assert not await own.is_overtaken()
