"""The first decision of a guard that was just started, however long the log is.

A guard keeps no state: it reads what it needs, request by request. So the time from the start of its process
to its first verdict must not grow with the log. The proposal waits in its queue before the guard starts,
and is about a request in the middle of its life, whose history has to be read and folded.
"""

import asyncio
import time
from pathlib import Path

from bench.cold_read import Growing
from bench.crew import Crew
from bench.figures import Figure, ratio, spread
from bench.load import ANSWER
from bench.place import CLIENT, FLEET, Place, place
from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.nats_protocol import Incoming
from mesh.bus.roles import ADMIN, GUARD
from mesh.fleet.setup import apply
from protocol.domain.ledger import fold_bodies
from protocol.wire import codec
from protocol.wire.commands import Complete, MoveProposed, Report, Usage
from protocol.wire.subjects import evt, prop

_PATIENCE_S = 60.0
_RECENT = 32


async def first_decisions(directory: Path, *, sizes: list[int], rounds: int) -> list[Figure]:
    """Measure at each of the log sizes, which grow."""
    figures: list[Figure] = []
    first: list[float] = []
    async with place(directory, sync_always=False) as at, await at.connect_as(ADMIN) as admin:
        await apply(admin, FLEET)
        growing = Growing(admin, max(sizes) + 1)
        for size in sizes:
            await growing.to(size)
            took, bare = [], []
            requests = list(growing.under_way)[-_RECENT:]
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
    ledger = fold_bodies(stored.body for stored in await JetStreamLog(admin).read(request))
    turn = ledger.holder
    if turn is None:
        raise RuntimeError(f"{request} is {ledger.status}")
    report = Report(usage=Usage(tokens=900, model_calls=1, nano_dollars=4_000_000))
    proposal = MoveProposed(turn=turn.id, round=turn.round, move=Complete(answer=ANSWER), report=report)
    async with await at.connect_as(turn.agent) as holder:
        await holder.publish_durable(prop(turn.agent, request), codec.encode(proposal))
