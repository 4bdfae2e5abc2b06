"""A key is replaced, and one of three servers is forgotten when they are reloaded."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from mesh.bus.connection import Bus, connect
from mesh.bus.credentials import read_key, seed_file
from mesh.bus.roles import ADMIN
from mesh.client import Client
from mesh.errors import AuthenticationFailed, BusError
from mesh.fleet.file import load_fleet
from mesh.fleet.setup import ACCOUNTS, KEYS, apply
from mesh.local.server import EmbeddedServer
from mesh.ops.servers import key_file, reloaded, varz_of
from tests.certificates import Authority
from tests.deploy.place import Place, Service, load, more, service
from tests.integration.test_cluster import started
from tests.integration.test_tls import block
from tests.servers import eventually

AGENT = ("agent", "run", "tests.deploy.echo:echo")


class Nodes:
    """Three servers that list keys, and the folder from which they are reloaded."""

    def __init__(self, place: Place, servers: Sequence[EmbeddedServer]) -> None:
        self.place, self.servers = place, servers

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self.servers)

    async def connect(self, url: str, name: str) -> Bus:
        return await connect(url, name=name, seed=self.place.seed(name), tls=self.place.tls)

    async def not_reloaded(self) -> list[str]:
        """Return what doctor says of servers that have not read the keys."""
        accounts = self.place.out / ACCOUNTS
        keys = key_file(accounts, read_key(seed_file(self.place.out / KEYS, ADMIN)).public)
        seen = await varz_of(",".join(server.monitor_url for server in self.servers))
        return [text async for state, text in reloaded(seen, keys) if state == "found"]


@contextlib.asynccontextmanager
async def running(directory: Path) -> AsyncIterator[tuple[Nodes, contextlib.AsyncExitStack]]:
    """Run three servers with the streams of the fleet."""
    place, authority = Place(directory), Authority(directory)
    place.tls = authority.sign("member")
    async with contextlib.AsyncExitStack() as stack:
        secured = block(authority.sign("server"), verify=True)
        nodes = Nodes(place, await started(stack, place.accounts, directory / "nodes", secured))
        admin = await stack.enter_async_context(await nodes.connect(nodes.url, ADMIN))

        async def is_set_up() -> bool:
            try:
                await apply(admin, load_fleet(place.file))
            except BusError:  # the servers have not met yet, or elect
                return False
            return True

        await eventually(is_set_up)
        yield nodes, stack


async def begun(
    nodes: Nodes, stack: contextlib.AsyncExitStack, url: str, name: str, *arguments: str
) -> Service:
    found = await stack.enter_async_context(service(nodes.place, url, name, *arguments, tls=nodes.place.tls))
    await eventually(found.is_ready)
    return found


async def test_a_forgotten_node_is_named_and_its_agent_works_on_with_the_key_that_it_knows(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as (nodes, stack):
        place, (first, second, forgotten) = nodes.place, nodes.servers
        await begun(nodes, stack, first.url, "guard", "guard", "run")
        agent = await begun(nodes, stack, forgotten.url, "echo", *AGENT)
        client = await stack.enter_async_context(
            await Client.connect(first.url, name="app", seed=place.seed("app"), tls=place.tls)
        )
        assert await nodes.not_reloaded() == []
        async with load(client) as served:
            await more(served)
            place.mesh("rotate", "echo")
            place.mesh("retire", "echo")
            for server in (first, second):
                await place.reload(server)
            [told] = await nodes.not_reloaded()
            assert told.startswith("n3 has not read ")
            agent.signal(signal.SIGHUP)  # refused with the new key, it takes the old one
            await eventually(lambda: asyncio.sleep(0, agent.logged("bus_key_replaced") == 1))
            await more(served)
            await eventually(agent.is_ready)
            assert agent.logged("bus.authentication") == 0, (
                "there is only its own node to ask, which knows the old"
            )
            with pytest.raises(AuthenticationFailed):
                await nodes.connect(forgotten.url, "echo")
            async with await nodes.connect(second.url, "echo"):
                pass
            await place.reload(forgotten)
            assert await nodes.not_reloaded() == []
            await eventually(agent.is_ready)
            await more(served)
        assert agent.logged("bus_key_replaced") == 1
