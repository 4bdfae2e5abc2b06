"""A request that no cache knows: its head and all its events, read and folded, however long the log is.

This is what a guard pays when it takes over another's partition. Recent requests are those of the last
10,000 events, so that a short and a long log are asked for the same; the older ones, from anywhere in
the log, are there for comparison. One request at a time.
"""

import itertools
import random
import time
from pathlib import Path

from bench.figures import Figure, Target, percentile, ratio, spread
from bench.filling import fill
from bench.place import FLEET, place
from bench.stories import history
from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.roles import ADMIN, GUARD
from mesh.fleet.setup import apply
from protocol.domain.ledger import fold_bodies

P50_MS = 4.0
_RECENT = 10_000
_SETTLED = 1000
"""At both ends of these lie requests that are not whole among them."""
_CHUNK = 50_000
_COMPLETED = b'{"type":"request.completed"'


async def cold_reads(directory: Path, *, sizes: list[int], rounds: int, reads: int) -> list[Figure]:
    """Measure at each of the log sizes, which grow."""
    async with (
        place(directory / "log", sync_always=False) as at,
        await at.connect_as(ADMIN) as admin,
        await at.connect_as(GUARD) as guard,
    ):
        await apply(admin, FLEET)
        growing = Growing(admin, max(sizes))
        return await _measure(JetStreamLog(guard), growing, sizes, rounds, reads)


async def _measure(
    log: JetStreamLog, growing: "Growing", sizes: list[int], rounds: int, reads: int
) -> list[Figure]:
    draw = random.Random(20)
    figures: list[Figure] = []
    first: list[float] = []
    for size in sizes:
        await growing.to(size)
        took = [await _read(log, draw.sample(growing.recent(), reads)) for _ in range(rounds)]
        name = f"cold read of a recent request, {size:,} events"
        p50 = [percentile(one, 0.5) for one in took]
        figures += _told(name, took, Target("at most", P50_MS))
        if first:
            against = f"{name}: p50 against {sizes[0]:,}"
            figures.append(Figure(against, "ms", spread(p50), spread(first), ratio(p50, first)))
        first = first or p50
    took = [await _read(log, draw.sample(growing.complete, reads)) for _ in range(rounds)]
    return [*figures, *_told(f"cold read of any request, {sizes[-1]:,} events", took, None)]


def _told(name: str, took: list[list[float]], target: Target | None) -> list[Figure]:
    return [
        Figure(f"{name}: p50", "ms", spread([percentile(one, 0.5) for one in took]), target=target),
        Figure(f"{name}: p99", "ms", spread([percentile(one, 0.99) for one in took])),
    ]


class Growing:
    """A log that is filled on and on, and which requests in it are complete."""

    def __init__(self, admin: Bus, most: int) -> None:
        self._admin = admin
        self._story = history(most)
        self._events = 0
        self.complete: list[str] = []
        self.others = 0
        """Events that somebody else has appended meanwhile."""
        self.under_way: dict[str, None] = {}
        """Requests that are not complete, the latest last."""
        self._ends: list[int] = []

    async def to(self, size: int) -> None:
        """Fill it up to `size` events."""
        while self._events < size:
            chunk = list(itertools.islice(self._story, min(_CHUNK, size - self._events)))
            await fill(self._admin, chunk, self._events + self.others)
            for line in chunk:
                self._events += 1
                self.under_way[line.request] = None
                if _COMPLETED in line.body[: len(_COMPLETED)]:
                    del self.under_way[line.request]
                    self.complete.append(line.request)
                    self._ends.append(self._events)

    def recent(self) -> list[str]:
        oldest, newest = self._events - _RECENT + _SETTLED, self._events - _SETTLED
        ends = zip(self.complete, self._ends, strict=True)
        return [request for request, end in ends if oldest < end <= newest]


async def _read(log: JetStreamLog, requests: list[str]) -> list[float]:
    """Return what each read and fold took, in ms."""
    took = []
    for request in requests:
        started = time.perf_counter()
        stored = await log.read(request)
        ledger = fold_bodies(event.body for event in stored)
        took.append((time.perf_counter() - started) * 1e3)
        if ledger.status != "completed":
            raise RuntimeError(f"{request} is {ledger.status}")
    return took
