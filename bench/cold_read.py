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
from bench.stories import Line, history
from mesh.bus.log import JetStreamLog
from mesh.bus.roles import ADMIN, GUARD
from mesh.setup import apply
from protocol.ledger import fold_bodies

P50_MS = 4.0
_RECENT = 10_000
_SETTLED = 1000
"""The very last events belong to requests that are not complete yet."""
_CHUNK = 50_000


async def cold_reads(directory: Path, *, sizes: list[int], rounds: int, reads: int) -> list[Figure]:
    """Measure at each of the log sizes, which grow."""
    figures: list[Figure] = []
    first: list[float] = []
    draw = random.Random(20)
    async with place(directory / "log", sync_always=False) as at:
        async with await at.connect_as(ADMIN) as admin, await at.connect_as(GUARD) as guard:
            await apply(admin, FLEET)
            log, story, known, stored = JetStreamLog(guard), history(max(sizes)), _Known(), 0
            for size in sizes:
                while stored < size:
                    chunk = list(itertools.islice(story, min(_CHUNK, size - stored)))
                    await fill(admin, chunk, stored)
                    known.note(chunk)
                    stored += len(chunk)
                took = [await _read(log, draw.sample(known.recent(), reads)) for _ in range(rounds)]
                p50 = [percentile(one, 0.5) for one in took]
                p99 = [percentile(one, 0.99) for one in took]
                named = f"cold read of a recent request, {size:,} events"
                figures.append(Figure(f"{named}: p50", "ms", spread(p50), target=Target("at most", P50_MS)))
                figures.append(Figure(f"{named}: p99", "ms", spread(p99)))
                if first:
                    figures.append(
                        Figure(f"{named}: p50 against {sizes[0]:,}", "ms", spread(p50), spread(first),
                               ratio(p50, first))
                    )  # fmt: skip
                else:
                    first = p50
            anywhere = [await _read(log, draw.sample(known.all, reads)) for _ in range(rounds)]
            named = f"cold read of any request, {sizes[-1]:,} events"
            figures += [
                Figure(f"{named}: p50", "ms", spread([percentile(one, 0.5) for one in anywhere])),
                Figure(f"{named}: p99", "ms", spread([percentile(one, 0.99) for one in anywhere])),
            ]
    return figures


class _Known:
    """The requests in the log that are complete."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._ends: list[int] = []
        self._events = 0

    def note(self, lines: list[Line]) -> None:
        for line in lines:
            self._events += 1
            if b'"request.completed"' in line.body[:80]:
                self.all.append(line.request)
                self._ends.append(self._events)

    def recent(self) -> list[str]:
        oldest, newest = self._events - _RECENT, self._events - _SETTLED
        return [
            request
            for request, end in zip(self.all, self._ends, strict=True)
            if oldest + _SETTLED < end <= newest
        ]


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
