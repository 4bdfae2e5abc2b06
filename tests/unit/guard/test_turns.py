"""Senders are served in turn, and no turn is lost."""

import asyncio

import pytest

from mesh.guard.queues import Turns


class Work:
    """Messages that are worked on until they are let go, in the order in which they got their turn."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.began: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def give(self, *names: str) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._do(name))
        await self._settled()

    async def _do(self, name: str) -> None:
        await self._turns.take(name[0])
        try:
            self.began.append(name)
            await self._ends[name].wait()
        finally:
            self._turns.give_back()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await self._settled()

    async def _settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_who_comes_last_waits_for_one_message_of_each_other_and_not_for_all() -> None:
    work = Work(Turns(2))
    await work.give("a1", "a2", "a3", "a4", "a5", "b1", "b2", "c1")
    assert work.began == ["a1", "a2"]
    await work.end("a1", "a2", "a3", "b1", "c1", "a4", "b2", "a5")
    assert work.began == ["a1", "a2", "a3", "b1", "c1", "a4", "b2", "a5"]


@pytest.mark.parametrize("victim", ["b1", "a1"])
async def test_a_message_that_is_given_up_takes_no_turn_with_it(victim: str) -> None:
    work = Work(Turns(1))
    await work.give("a1", "b1", "c1")
    work.tasks[victim].cancel()
    await work.end("a1")
    await work.end("b1")
    assert work.began[-1] == "c1"
    await work.end("c1")
    await work.give("d1")
    assert work.began[-1] == "d1", "the turn is free again"
    await work.end("d1")


async def test_a_message_given_up_as_it_gets_its_turn_hands_it_on() -> None:
    work = Work(Turns(1))
    await work.give("a1", "b1", "c1")
    work._ends["a1"].set()
    await asyncio.sleep(0)  # a1 ends and b1 is given the turn; b1 has not run yet
    work.tasks["b1"].cancel()
    await work.end("a1")
    assert work.began == ["a1", "c1"]
    await work.end("c1")
