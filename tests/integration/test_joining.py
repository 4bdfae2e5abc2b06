"""A member joins a mesh that runs: the server reads its configuration again, and nobody else notices."""

import asyncio
import os
import signal

import msgspec

from mesh.bus.consumer import Message, Puller
from mesh.bus.credentials import new_key
from mesh.bus.event_log import JetStreamLog
from mesh.bus.presence import is_served
from mesh.bus.provision import provision
from mesh.bus.roles import accounts_config
from mesh.bus.streams import inbox_consumer
from mesh.testing import LocalBus
from protocol.wire.config import AgentEntry
from protocol.wire.ids import AgentName
from protocol.wire.subjects import live, prop
from tests.servers import FLEET, PATIENCE_S, fresh, until


async def reload(mesh: LocalBus) -> None:
    """Let the server read its configuration again, and wait until it has."""
    done = b"Reloaded server configuration"
    before = mesh.server.log.read_bytes().count(done)
    os.kill(mesh.server.pid, signal.SIGHUP)
    await until(lambda: mesh.server.log.read_bytes().count(done) > before)


async def test_an_agent_joins_while_the_others_work(own_server: LocalBus) -> None:
    mesh = own_server
    client, guard, agent = [await mesh.connect_as(name) for name in ("c1", "guard", "a")]
    got: asyncio.Queue[Message] = asyncio.Queue()

    async def take(message: Message) -> None:
        await message.ack_sync()
        got.put_nowait(message)

    puller = Puller(agent, "LOG", inbox_consumer("a"), take, slots=1, expires_s=3600.0)
    await puller.start()
    shown: list[str] = []
    await client.subscribe("mesh.live.c1.>", lambda message: shown.append(message.subject))

    wider = msgspec.structs.replace(FLEET, agents={**FLEET.agents, "new": AgentEntry(name=AgentName("new"))})
    mesh.keys["new"] = new_key()
    mesh.server._accounts = accounts_config(wider, {name: key.public for name, key in mesh.keys.items()})
    mesh.server._write_configuration()
    for _ in range(2):  # the first time the server does not yet connect what new accounts import
        await reload(mesh)

    async with mesh.connected_as("admin") as admin:
        await provision(admin, wider)
    async with mesh.connected_as("new") as joiner:
        await joiner.publish_durable(prop("new", fresh()), b"{}")
        await joiner.subscribe("$SRV.PING.new", lambda m: joiner.send(m.reply, b"{}") and None)
        assert await is_served(guard, "new")

    assert [bus.counters.disconnects for bus in (client, guard, agent)] == [0, 0, 0]
    request = fresh()
    await JetStreamLog(guard).append("a", request, b'{"n":0}', after=0)
    message = await asyncio.wait_for(got.get(), PATIENCE_S)  # by the pull that waited all along
    assert (message.delivered, message.subject) == (1, f"mesh.evt.a.{request}")
    await agent.publish(live("c1", request, "a", "t"), b"a token")
    await until(lambda: shown == [live("c1", request, "a", "t")])
    await puller.close()
    for bus in (client, guard, agent):
        await bus.close()
