"""The load: a closed loop of so many callers, each of which sends its next request when the last is answered.

The same code drives mesh and ring, in a process of its own; only what one request is differs.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from protocol.wire.handoff import Fact
from protocol.wire.ids import NOBODY

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


# --- how large the messages of one request are -----------------------------------------------------


class Sizes(msgspec.Struct, frozen=True):
    """Bytes of headers and body together; the ring sends as many as the mesh does."""

    proposals: dict[str, int]
    """By sender; the client's is its submit."""
    events: dict[str, int]
    """By addressee; the client's is the answer, and nobody's is what the answer does not tell the client."""
    timer: int
    asked: int = 0
    """How many of the proposals guards were asked, so that no stream has them."""

    @property
    def publishes(self) -> int:
        """How many durable publishes a request takes, if its proposals are stored."""
        return len(self.proposals) + len(self.events) + 1


@dataclass
class Sample:
    """What went by."""

    proposals: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    timers: list[int] = field(default_factory=list)
    steps: int = 0
    asked: int = 0

    def take(self, message: Incoming) -> None:
        _, kind, name, *more = message.subject.split(".")
        size = len(message.head) + len(message.data)
        if kind == "timer":
            self.timers.append(size)
        elif kind == "step":
            self.steps += 1
        elif kind == "lane":  # the partition stands before its sender
            self.proposals[more[0]] = size
            self.asked += 1
        else:
            (self.proposals if kind == "prop" else self.events)[name] = size

    def sizes(self) -> Sizes:
        """Return what was seen. Raises ValueError unless it was one whole request that the ring can match.

        A journalled step is a durable publish too, and the ring has none: better no figure than a wrong one.
        """
        addressed = self.events.keys() - {NOBODY}
        if self.steps or len(self.timers) != 1 or addressed != self.proposals.keys():
            raise ValueError(f"not one whole request: {self}")
        return Sizes(self.proposals, self.events, self.timers[0], self.asked)


@contextlib.asynccontextmanager
async def sampled(admin: Bus) -> AsyncIterator[Sample]:
    """Listen to what is published to the streams, and asked of guards."""
    sample = Sample()
    heard = [
        await admin.subscribe(subject, sample.take)
        for subject in ("mesh.prop.*.*", "mesh.lane.*.*.*", "mesh.evt.*.*", "mesh.timer.at.*", "mesh.step.>")
    ]
    try:
        yield sample
    finally:
        for subscription in heard:
            await subscription.close()
