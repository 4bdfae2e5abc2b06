"""Three servers: what crosses between accounts crosses between servers, too."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from mesh.bus import credentials, roles
from mesh.bus.connection import Bus, connect
from mesh.bus.consumer import Message, Puller
from mesh.bus.event_log import JetStreamLog
from mesh.bus.nats_protocol import Incoming
from mesh.bus.presence import is_served, statistics
from mesh.bus.provision import provision
from mesh.bus.roles import GET, accounts_config, server_config
from mesh.bus.streams import Storage, inbox_consumer
from mesh.errors import BusError
from mesh.local.server import server_binary
from protocol.wire.subjects import card, evt, live, note, prop
from tests.servers import FLEET, PATIENCE_S, eventually, fresh, until

NODES = ("n1", "n2", "n3")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Cluster:
    """Three servers, and connections to any of them."""

    def __init__(self, directory: Path) -> None:
        self.keys = {name: credentials.new_key() for name in roles.names(FLEET)}
        self.directory = directory
        self.processes: list[asyncio.subprocess.Process] = []
        self.urls: dict[str, str] = {}
        self.stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        ports = free_ports(2 * len(NODES))
        routes = ports[len(NODES) :]
        publics = {name: key.public for name, key in self.keys.items()}
        listed = json.dumps([f"nats-route://127.0.0.1:{port}" for port in routes])
        for node, port, route in zip(NODES, ports, routes, strict=False):
            extra = f'cluster {{ name: c, listen: "127.0.0.1:{route}", routes: {listed} }}'
            path = self.directory / f"{node}.conf"
            path.write_text(
                server_config(
                    accounts_config(FLEET, publics),
                    store=self.directory / node,
                    listen=f"127.0.0.1:{port}",
                    server_name=node,
                    sync_always=False,
                    extra=extra,
                )
            )
            with (self.directory / f"{node}.log").open("wb") as log:
                server = await asyncio.create_subprocess_exec(server_binary(), "-c", path, stderr=log)
            self.processes.append(server)
            self.urls[node] = f"nats://127.0.0.1:{port}"
        admin = await self.bus("admin", "n1")

        async def provisioned() -> bool:
            with contextlib.suppress(BusError):
                await provision(admin, FLEET, Storage(replicas=3))
                return True
            return False

        await eventually(provisioned)

    async def bus(self, name: str, node: str) -> Bus:
        bus = await connect(self.urls[node], name=name, seed=self.keys[name].seed, wait=True)
        return await self.stack.enter_async_context(bus)

    async def stop(self) -> None:
        await self.stack.aclose()
        for process in self.processes:
            process.kill()
            await process.wait()


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


async def test_everything_crosses_between_accounts_on_different_servers(cluster: Cluster) -> None:
    client, guard, agent, operator = [
        await cluster.bus(name, node)
        for name, node in (("c1", "n1"), ("guard", "n2"), ("a", "n3"), ("op", "n1"))
    ]
    other = await cluster.bus("b", "n2")
    request, shown, told, changed = fresh(), list[Incoming](), list[Incoming](), list[Incoming]()
    work: asyncio.Queue[Message] = asyncio.Queue()

    async def take(message: Message) -> None:
        await message.ack_sync()
        work.put_nowait(message)

    await client.subscribe("mesh.live.c1.>", shown.append)
    await client.subscribe("mesh.note.c1.*", told.append)
    await other.subscribe("mesh.changed.card.*", changed.append)
    await agent.subscribe("$SRV.PING.a", lambda m: agent.send(m.reply, b'{"name":"a"}') and None)
    await agent.subscribe("$SRV.STATS.a", lambda m: agent.send(m.reply, b'{"name":"a"}') and None)
    puller = Puller(agent, "LOG", inbox_consumer("a"), take, slots=1, expires_s=4.0)
    await agent.retry_unavailable(puller.start)

    await client.publish_durable(prop("c1", request), b"{}")
    opened = await JetStreamLog(guard).append("a", request, b'{"n":0}', after=0)
    assert (await asyncio.wait_for(work.get(), PATIENCE_S)).stream_seq == opened
    await agent.publish_durable(prop("a", request), b"{}")
    await agent.publish_durable(card("a"), b"{}")
    await JetStreamLog(guard).append("c1", request, b'{"n":1}', after=opened)

    async def answered() -> bool:
        return (await client.request(GET + "LOG." + evt("c1", request))).data == b'{"n":1}'

    await eventually(answered)
    await until(lambda: note("c1", request) in [message.subject for message in told])
    await until(lambda: [message.subject for message in changed] == ["mesh.changed.card.a"])

    async def heard() -> bool:
        await agent.publish(live("c1", request, "a", "t"), b"a token")
        await agent.flush()
        return bool(shown)

    await eventually(heard)  # what a client listens to becomes known to the other servers in a moment
    await eventually(lambda: is_served(guard, "a"))
    assert not await is_served(guard, "e")

    async def told_of() -> bool:
        return await statistics(operator, "a") == [b'{"name":"a"}']

    await eventually(told_of)
    await puller.close()
