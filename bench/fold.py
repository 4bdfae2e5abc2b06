"""Folding a whole log: what a reader of everything (an export, an index, a dashboard) can take in.

From JetStream as a viewer does it, through its own audit consumer and out of the streams' account; and
from an exported file, one event a line. Both decode each event and apply it to its request's ledger. A
ledger is dropped when its request has ended, as a reader that keeps up with a live log would.
"""

import asyncio
import itertools
import time
from collections.abc import Iterable
from pathlib import Path

from bench.figures import Figure, Target, spread
from bench.place import FLEET, VIEWER, place
from bench.stories import fill, history, originals
from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.roles import ADMIN
from mesh.fleet.setup import apply
from protocol.domain import hash_chain
from protocol.domain.ledger import Ledger
from protocol.wire import codec

FROM_JETSTREAM = Target("at least", 60_000)
FROM_FILE = Target("at least", 150_000)
VERIFIED = Target("at least", 100_000)
_CHUNK = 20_000


class Folding:
    """Ledgers of everything that is under way."""

    def __init__(self) -> None:
        self.ledgers: dict[str, Ledger] = {}
        self.events = 0
        self.ended = 0

    def take(self, body: bytes) -> None:
        event = codec.decode_event(body)
        ledger = self.ledgers.get(event.request)
        if ledger is None:
            ledger = self.ledgers[event.request] = Ledger()
        ledger.apply(event, body)
        self.events += 1
        if ledger.ended is not None:
            del self.ledgers[event.request]
            self.ended += 1


async def whole_log(directory: Path, *, events: int, rounds: int) -> list[Figure]:
    """Fill a log with `events` events and fold it, from JetStream and from a file."""
    name = f"fold of {events:,} events"
    async with place(directory / "log", sync_always=False) as at:
        file = directory / "log.jsonl"
        async with await at.connect_as(ADMIN) as admin:
            await apply(admin, FLEET)
            await _write(admin, file, events)
        async with await at.connect_as(VIEWER) as viewer:
            log = JetStreamLog(viewer, leader=False)
            folded, bare = [], []
            for _ in range(rounds):
                folded.append(events / await _follow(log, Folding()))
                bare.append(events / await _follow(log, None))
    from_file = [events / _from_file(file, events) for _ in range(rounds)]
    played = [[line.body for line in request] for request in originals(max(4, min(2000, events // 50)))]
    verified = [_verify(played) for _ in range(rounds)]
    return [
        Figure(f"{name} from JetStream, as a viewer", "1/s", spread(folded), target=FROM_JETSTREAM),
        Figure(f"{name}: reading alone, nothing decoded", "1/s", spread(bare)),
        Figure(f"{name} from a file", "1/s", spread(from_file), target=FROM_FILE),
        Figure("chain verification, in memory", "1/s", spread(verified), target=VERIFIED),
    ]


async def _write(admin: Bus, file: Path, events: int) -> None:
    """Put the same events into the log and into a file; nothing of them is kept in memory."""
    story, already = history(events), 0
    with await asyncio.to_thread(file.open, "wb") as export:
        while chunk := list(itertools.islice(story, _CHUNK)):
            await fill(admin, chunk, already)
            export.writelines(line.body + b"\n" for line in chunk)
            already += len(chunk)


async def _follow(log: JetStreamLog, folding: Folding | None) -> float:
    """Return the seconds that reading the whole log takes."""
    started = time.perf_counter()
    async for stored in log.follow(tail=False):
        if folding is not None:
            folding.take(stored.body)
    return time.perf_counter() - started


def _from_file(file: Path, events: int) -> float:
    folding = Folding()
    started = time.perf_counter()
    with file.open("rb") as lines:
        for line in lines:
            folding.take(line)
    took = time.perf_counter() - started
    if folding.events != events:
        raise RuntimeError(f"{folding.events} events in the file, not {events}")
    return took


def _verify(requests: Iterable[list[bytes]]) -> float:
    """Return events a second."""
    started, events = time.perf_counter(), 0
    for bodies in requests:
        events += len(bodies)
        if hash_chain.breaks(bodies):
            raise RuntimeError("a chain that was just written does not verify")
    return events / (time.perf_counter() - started)
