"""What tests of backups share: agents that count what they do, a mesh with open requests, an empty server."""

import contextlib
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from mesh.agent.tools import Tool, tool
from mesh.agent.turn import Turn
from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.streams import inbox_consumer
from mesh.ops.backup import MANIFEST
from mesh.testing import EmbeddedBus
from protocol.wire.moves import Move
from tests.guard.stage import Stage, furnished_mesh, staged
from tests.servers import FLEET


class Bank:
    """Agents `a` and `b`: one charges and hands on, the other writes a receipt. It counts what was done."""

    def __init__(self) -> None:
        self.charges = Counter[str]()
        self.receipts = Counter[str]()

        @tool(effect="idempotent")
        async def charge(request: str, idempotency_key: str) -> str:
            """Charge once for each key."""
            self.charges[idempotency_key] += 1
            return idempotency_key

        self.charge: Tool = charge

    async def front(self, turn: Turn) -> Move:
        charged = await turn.call(self.charge, request=turn.request)
        return turn.transfer("b", summary="write the receipt", facts={"charged": charged})

    async def back(self, turn: Turn) -> Move:
        self.receipts[turn.request] += 1
        return turn.complete(turn.facts["charged"])


@contextlib.asynccontextmanager
async def empty_server(like: EmbeddedBus, folder: Path) -> AsyncIterator[EmbeddedBus]:
    """Give a server with nothing in its store, and the same keys as another one."""
    shutil.copytree(like.server.store.parent / "keys", folder / "keys")
    mesh = EmbeddedBus(FLEET, folder)
    await mesh.server.start()
    try:
        yield mesh
    finally:
        await mesh.server.kill()


async def bodies_of(bus: Bus) -> list[tuple[int, bytes]]:
    return [(stored.seq, stored.data) async for stored in JetStreamLog(bus).follow(tail=False)]


@contextlib.asynccontextmanager
async def mesh_with_requests(folder: Path, count: int = 2) -> AsyncIterator[Stage]:
    """Give a stage whose log has some open requests, and nobody who serves their agent."""
    async with furnished_mesh(folder) as mesh, staged(mesh, guards=1) as stage:
        await submitted(stage, count)
        yield stage


async def submitted(stage: Stage, count: int) -> list[str]:
    requests = [await (await stage.client()).submit("hello", to="a") for _ in range(count)]
    for request in requests:
        await stage.reaches(request, "request.opened")
    return [str(request) for request in requests]


async def acknowledged_unseen(admin: Bus, agent: str) -> None:
    """Let an agent's consumer be ahead of the log, as in a store that was copied while it ran."""
    name = inbox_consumer(agent)
    config = (await admin.api(f"CONSUMER.INFO.LOG.{name}"))["config"]
    end = (await admin.api("STREAM.INFO.LOG"))["state"]["last_seq"]
    await admin.api(f"CONSUMER.DELETE.LOG.{name}")
    config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": end + 1}
    body = {"stream_name": "LOG", "config": config, "action": "create"}
    await admin.api(f"CONSUMER.CREATE.LOG.{name}", body)


def write(folder: Path, manifest: Any) -> None:
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
