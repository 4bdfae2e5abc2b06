"""Three servers of an operator: each takes what one of them is handed, and none is ever reloaded."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mesh.bus.accounts import resolver_config
from mesh.bus.provision import provision
from mesh.bus.roles import ADMIN
from mesh.bus.streams import Storage
from mesh.errors import AuthenticationFailed, BusError
from mesh.fleet.file import FleetFile, parse_fleet
from mesh.fleet.handover import hand_over, lacking_accounts
from mesh.fleet.keys import retire, rotate
from mesh.fleet.setup import prepare
from mesh.local.server import EmbeddedServer
from protocol.wire.subjects import prop
from tests.integration.test_cluster import Cluster, crosses, started
from tests.servers import eventually, fresh, until

TEXT = """
name = "three"
entry = "a"
[bus]
auth = "jwt"
[agents.a]
intents = ["review"]
[agents.b]
[agents.e]
[clients.c1]
[operators.op]
"""


class SignedCluster(Cluster):
    """Three servers, and the folder of their operator."""

    file: FleetFile

    def sign(self, text: str) -> None:
        """Give the mesh another fleet file, and sign what it needs."""
        self.file = parse_fleet(text)
        self.keys = prepare(self.file, self.directory).keys

    async def is_let_in(self, name: str, server: EmbeddedServer) -> bool:
        try:
            async with await self.connect(name, self.servers.index(server)):
                return True
        except AuthenticationFailed:
            return False


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def signed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SignedCluster]:
    directory = tmp_path_factory.mktemp("signed")
    async with contextlib.AsyncExitStack() as stack:
        accounts = prepare(parse_fleet(TEXT), directory).accounts
        servers = await started(stack, accounts, directory, resolver_config("{store}/accounts"))
        mesh = SignedCluster(servers, {}, directory)
        mesh.sign(TEXT)
        bus = await stack.enter_async_context(await mesh.connect())

        async def provisioned() -> bool:
            try:
                await provision(bus, mesh.file.fleet, Storage(replicas=3))
            except BusError:  # the servers have not met yet, or elect
                return False
            return True

        await eventually(provisioned)
        yield mesh
        assert not any(b"Reloaded" in server.log.read_bytes() for server in servers)
        await asyncio.gather(*(server.kill() for server in servers))


async def test_everything_crosses_between_accounts_on_different_servers(signed: SignedCluster) -> None:
    async with contextlib.AsyncExitStack() as stack:
        members = (("c1", 0), ("guard", 1), ("a", 2), ("op", 0), ("b", 1))
        await crosses(*[await stack.enter_async_context(await signed.connect(*each)) for each in members])


async def test_each_server_takes_a_new_agent_and_a_retired_key(signed: SignedCluster) -> None:
    first, _, last = signed.servers
    signed.sign(TEXT + "[agents.new]\n")
    assert await hand_over(first.url, signed.directory) == ["new", "CORE"]
    for server in signed.servers:
        await eventually(lambda server=server: signed.is_let_in("new", server))  # type: ignore[misc]
    async with await signed.connect("new", 2) as new:
        async with await signed.connect(ADMIN) as admin:
            await provision(admin, signed.file.fleet, Storage(replicas=3))
        await new.retry_unavailable(lambda: new.publish_durable(prop("new", fresh("c1")), b"{}"))
        rotate(signed.file, signed.directory, "new")
        retire(signed.file, signed.directory, "new")
        assert await hand_over(first.url, signed.directory) == ["new"]
        await until(lambda: not new.connected)
    for server in signed.servers:
        assert not await signed.is_let_in("new", server)
    signed.sign(TEXT + "[agents.new]\n")
    for server in signed.servers:
        assert await signed.is_let_in("new", server)
    assert await lacking_accounts(last.url, signed.directory) == []


async def test_a_server_that_was_away_hears_of_a_retired_key_when_it_is_back(signed: SignedCluster) -> None:
    first, _, last = signed.servers
    old = signed.keys["e"]
    await last.stop()
    rotate(signed.file, signed.directory, "e")
    retire(signed.file, signed.directory, "e")
    await hand_over(first.url, signed.directory)
    await last.start()
    assert signed.keys["e"] == old

    async def is_refused() -> bool:
        return not await signed.is_let_in("e", last)

    await eventually(is_refused)
