"""The load: a closed loop of so many callers, each of which sends its next request when the last is answered.

The same code drives mesh and ring, in a process of its own; only what one request is differs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from protocol.wire.handoff import Fact

TEXT = "My invoice of last month was charged twice and nobody has answered my mails since then."
FACTS = (
    Fact(key="customer", value={"id": "C-20931", "since": "2019-04-02", "plan": "business", "seats": 40}),
    Fact(key="invoice", value={"id": "INV-8812", "cents": 48_000, "currency": "EUR", "lines": 12}),
    Fact(key="thread", value=[f"mail {number}: " + "where is my refund? " * 5 for number in range(6)]),
)
"""About 1.1 KB as JSON, the text included: what each handoff carries."""
SUMMARY = "Find out why the invoice was charged twice and see what can be done about it"
ANSWER = "The second charge was refunded today; it will show on the next statement."


class Task(msgspec.Struct, frozen=True):
    """What a driver is told."""

    requests: int
    concurrency: int


class Done(msgspec.Struct, frozen=True):
    """What a driver measured."""

    elapsed_s: float
    took_ms: list[float]
    """Of each request, from before its submit to its answer in hand."""

    @property
    def per_s(self) -> float:
        return len(self.took_ms) / self.elapsed_s


async def run(one: Callable[[], Awaitable[None]], task: Task) -> Done:
    """Let `task.concurrency` callers do `one` request after the other until all are done."""
    took_ms: list[float] = []
    left = task.requests

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            started = time.perf_counter()
            await one()
            took_ms.append((time.perf_counter() - started) * 1e3)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as callers:
        for _ in range(task.concurrency):
            callers.create_task(caller())
    return Done(time.perf_counter() - started, took_ms)
