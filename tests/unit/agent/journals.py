"""Journals for tests, and a world that remembers what was done to it."""

import asyncio
from typing import Any

from msgspec.structs import replace

from mesh.agent import Turn
from mesh.agent._journal import Journal
from mesh.agent._steps import Call, RoundKey
from mesh.local.in_memory import turn_of
from mesh.testing import MemorySteps, turn
from protocol.wire.event_parts import RoundOutcome


class World:
    """Something with effects: what was done stays done."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def doing(self, what: str, value: Any = None) -> Any:
        async def do() -> Any:
            self.done.append(what)
            return what if value is None else value

        return do


def journal(
    store: MemorySteps,
    round_: int = 0,
    nonce: str = "n1",
    past: tuple[RoundOutcome, ...] = (),
    fresh: bool = False,
) -> Journal:
    key = RoundKey("a", "r", "t", round_)
    return Journal(store, key, nonce=nonce, version="1", fresh=fresh, past=past)


def call(name: str, digest: str = "d", kind: str = "call") -> Call:
    return (kind, name, digest)


class Held:
    """Something that a test lets go on when it likes."""

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> Any:
        self.begun.set()
        await self.may_end.wait()
        return self.value


def given(steps: MemorySteps, **about: Any) -> Turn:
    made = turn(steps=steps, **about)
    return turn_of(made.request, made.execution.work, replace(made.execution.fleet, lease_s=0.0), steps)
