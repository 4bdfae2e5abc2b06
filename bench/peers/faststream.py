"""FastStream beside the mesh: five processes that hand on over one stream, and nothing between them.

It shows what durable messages alone cost: there is no guard, no log of a request, no rule, no permission, and
no redelivery once a handler has begun (it acknowledges first). Its server is synced as the mesh's is.

A member is `python -m bench.peers.faststream driver|NAME URL`.
"""

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench.crew import Crew, obey
from bench.load import ANSWER, FACTS, SUMMARY, TEXT, Task, run
from bench.peers.place import Fetched
from bench.place import AGENTS
from bench.rounds import SERVER, Side
from mesh.bus.connection import connect
from mesh.local.server import EmbeddedServer

if TYPE_CHECKING:  # only a member has it
    from faststream.nats import NatsBroker

DRIVER = "driver"
STREAM = "PEER"
_NEXT = dict(itertools.pairwise(AGENTS))


@contextlib.asynccontextmanager
async def faststream_side(directory: Path, fetched: Fetched, *, sync_always: bool) -> AsyncIterator[Side]:
    """Start a server, five subscribers and a driver."""
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    async with (
        EmbeddedServer("", directory / "store", sync_always=sync_always) as server,
        Crew(directory, fetched.environment) as crew,
    ):
        async with await connect(server.url, name=DRIVER) as bus:
            config = {"name": STREAM, "subjects": ["peer.>"], "storage": "file"}
            await bus.api(f"STREAM.CREATE.{STREAM}", config)
        await crew.start_all(__name__, (*AGENTS, DRIVER), server.url)
        pids = {SERVER: server.pid, **{name: each.pid for name, each in crew.members.items()}}
        yield Side("faststream", pids, [crew.members[DRIVER]])


# --- inside a member ------------------------------------------------------------------------------


def _handoff(giver: str, taker: str, request: int, inbox: str) -> dict[str, Any]:
    facts = [msgspec.to_builtins(fact) for fact in FACTS]
    who = {"from": giver, "to": taker, "request": request, "inbox": inbox}
    return {**who, "text": TEXT, "facts": facts, "summary": SUMMARY}


def _broker(url: str) -> "NatsBroker":
    from faststream.nats import NatsBroker

    return NatsBroker(url, logger=None)


async def _serve(name: str, url: str) -> None:
    from faststream.nats import JStream

    broker, following = _broker(url), _NEXT.get(name)
    stream = JStream(STREAM, subjects=["peer.>"], declare=False)

    @broker.subscriber(f"peer.{name}", stream=stream, durable=f"in-{name}", max_workers=64)
    async def turn(work: dict[str, Any]) -> None:
        if following is None:
            await broker.publish(
                {"request": work["request"], "answer": ANSWER}, "peer.answered", stream=STREAM
            )
            await broker.publish({"request": work["request"], "answer": ANSWER}, work["inbox"])
        else:
            on = _handoff(name, following, work["request"], work["inbox"])
            await broker.publish(on, f"peer.{following}", stream=STREAM)

    await broker.start()
    await obey()
    await broker.stop()


async def _drive(url: str) -> None:
    broker, inbox, numbers = _broker(url), "answers", itertools.count()
    waiting: dict[int, asyncio.Future[str]] = {}

    @broker.subscriber(inbox)
    async def answered(said: dict[str, Any]) -> None:
        waiting.pop(said["request"]).set_result(said["answer"])

    async def one() -> None:
        number = next(numbers)
        answer = waiting[number] = asyncio.get_running_loop().create_future()
        first = _handoff("app", AGENTS[0], number, inbox)
        await broker.publish(first, f"peer.{AGENTS[0]}", stream=STREAM)
        if await answer != ANSWER:
            raise RuntimeError(f"{number}: {answer.result()}")

    async def task(told: Any) -> Any:
        return await run(one, msgspec.convert(told, Task))

    await broker.start()
    await obey(task)
    await broker.stop()


if __name__ == "__main__":
    asyncio.run(_drive(sys.argv[2]) if sys.argv[1] == DRIVER else _serve(sys.argv[1], sys.argv[2]))
