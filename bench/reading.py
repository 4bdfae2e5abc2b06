"""Reading a log: one request that no cache knows, a guard's first decision, and the whole log folded.

A *cold read* is what a guard pays when it takes over another's partition: a request's head and all its
events, read and folded, however long the log is. Recent requests are those of the last 10,000 events, so that
a short and a long log are asked for the same; the older ones, from anywhere in the log, are there for
comparison. One request at a time.

*The whole log* is what a reader of everything (an export, an index, a dashboard) can take in: from JetStream
as a viewer does it, through its own audit consumer and out of the streams' account; and from an exported
file, one event a line, on all cores, as `mesh replay` reads it. Both decode each event and apply it to its
request's ledger. A ledger is dropped when its request has ended, as a reader that keeps up with a live log
would.
"""

import asyncio
import itertools
import random
import sys
import time
from pathlib import Path

from bench.crew import ROOT, Crew
from bench.figures import Figure, Target, percentile, ratio, spread
from bench.load import ANSWER
from bench.place import CLIENT, FLEET, VIEWER, Place, place
from bench.stories import fill, history, originals
from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.nats_protocol import Incoming
from mesh.bus.roles import ADMIN, GUARD
from mesh.fleet.setup import apply
from mesh.ops.chain_parts import chains_in
from mesh.replay.export import of_each
from protocol.domain.ledger import Ledger, fold_bodies
from protocol.wire import codec
from protocol.wire.commands import MoveProposed, Report, Usage
from protocol.wire.moves import Complete
from protocol.wire.subjects import evt, prop

P50_MS = 4.0
_RECENT = 10_000
_SETTLED = 1000
"""At both ends of these lie requests that are not whole among them."""
_CHUNK = 20_000
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
        ledger = fold_bodies(event.data for event in stored)
        took.append((time.perf_counter() - started) * 1e3)
        if ledger.status != "completed":
            raise RuntimeError(f"{request} is {ledger.status}")
    return took


# --- the first decision of a guard that was just started -------------------------------------------

_PATIENCE_S = 60.0
_LATEST = 32


async def first_decisions(directory: Path, *, sizes: list[int], rounds: int) -> list[Figure]:
    """Measure the time from a guard's start to its first verdict, at each of the log sizes, which grow.

    A guard keeps no state: it reads what it needs, request by request. So the time must not grow with the
    log. The proposal waits in its queue before the guard starts. It is about a request in the middle of its
    life, whose history has to be read and folded.
    """
    figures: list[Figure] = []
    first: list[float] = []
    async with place(directory, sync_always=False) as at, await at.connect_as(ADMIN) as admin:
        await apply(admin, FLEET)
        growing = Growing(admin, max(sizes) + 1)
        for size in sizes:
            await growing.to(size)
            took, bare = [], []
            requests = list(growing.under_way)[-_LATEST:]
            for number in range(rounds):
                async with Crew(directory) as crew:
                    decided_s, ready_s = await _once(at, crew, admin, requests[number], f"g{size}-{number}")
                took.append(decided_s)
                bare.append(decided_s - ready_s)
                growing.under_way.pop(requests[number])
                growing.others += 2  # the verdict, and what it does not tell the client
            name = f"first decision of a started guard, {size:,} events"
            figures.append(Figure(name, "s", spread(took)))
            figures.append(Figure(f"{name}: after its process was up", "s", spread(bare)))
            if first:
                against = f"{name}: against {sizes[0]:,}"
                figures.append(Figure(against, "s", spread(took), spread(first), ratio(took, first)))
            first = first or took
    return figures


async def _once(at: Place, crew: Crew, admin: Bus, request: str, name: str) -> tuple[float, float]:
    """Return the seconds from a guard's start to its first verdict, and to when its process was up."""
    await _propose(at, admin, request)
    decided = asyncio.Event()

    def look(message: Incoming) -> None:
        decided.set()

    heard = await admin.subscribe(evt(CLIENT, request), look)
    started = time.perf_counter()
    await crew.start(name, "bench.chain", GUARD, at.url, str(at.keys))
    ready_s = time.perf_counter() - started
    async with asyncio.timeout(_PATIENCE_S):
        await decided.wait()
    decided_s = time.perf_counter() - started
    await heard.close()
    return decided_s, ready_s


async def _propose(at: Place, admin: Bus, request: str) -> None:
    """Let the holder of a request complete it; nobody is there yet to decide that."""
    ledger = fold_bodies(stored.data for stored in await JetStreamLog(admin).read(request))
    turn = ledger.holder
    if turn is None:
        raise RuntimeError(f"{request} is {ledger.status}")
    report = Report(usage=Usage(tokens=900, model_calls=1, nano_dollars=4_000_000))
    proposal = MoveProposed(turn=turn.id, round=turn.round, move=Complete(answer=ANSWER), report=report)
    async with await at.connect_as(turn.agent) as holder:
        await holder.publish_durable(prop(turn.agent, request), codec.encode(proposal))


# --- the whole log ---------------------------------------------------------------------------------

FROM_JETSTREAM = Target("at least", 60_000)
FROM_FILE = Target("at least", 150_000)
VERIFIED = Target("at least", 250_000)


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
    played = directory / "played.jsonl"
    count = max(4, min(2000, events // 50))
    await asyncio.to_thread(_play, played, count)
    from_file = [await _alone("fold", file) for _ in range(rounds)]
    verified = [await _alone("verify", played) for _ in range(rounds)]
    return [
        Figure(f"{name} from JetStream, as a viewer", "1/s", spread(folded), target=FROM_JETSTREAM),
        Figure(f"{name}: reading alone, nothing decoded", "1/s", spread(bare)),
        Figure(f"{name} from a file", "1/s", spread(from_file), target=FROM_FILE),
        Figure("chain verification from a file", "1/s", spread(verified), target=VERIFIED),
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
            folding.take(stored.data)
    return time.perf_counter() - started


def _play(file: Path, requests: int) -> None:
    with file.open("wb") as export:
        export.writelines(line.body + b"\n" for request in originals(requests) for line in request)


async def _alone(what: str, file: Path) -> float:
    """Return the events a second that a process of its own measures: one without threads shares a file."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.reading", what, str(file)), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    said, _ = await process.communicate()
    return float(said)


def _folded(bodies: list[bytes]) -> int:
    return fold_bodies(bodies).n


async def _fold(file: Path) -> int:
    return sum(await of_each(file, _folded))


async def _verify(file: Path) -> int:
    chains = await chains_in(file)
    if chains.breaks:
        raise RuntimeError("a chain that was just written does not verify")
    return chains.events


def _rate(what: str, file: Path) -> float:
    """Return the events a second of folding, or of verifying, all requests in a file."""
    started = time.perf_counter()
    events = asyncio.run({"fold": _fold, "verify": _verify}[what](file))
    took = time.perf_counter() - started
    if events != file.read_bytes().count(b"\n"):
        raise RuntimeError(f"{events} events are not all that the file holds")
    return events / took


if __name__ == "__main__":
    sys.stdout.write(str(_rate(sys.argv[1], Path(sys.argv[2]))))
