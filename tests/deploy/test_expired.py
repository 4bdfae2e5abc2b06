"""Certificates that expire while the mesh works: who says so, and that nothing is lost once they are new."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from mesh.bus.connection import connect
from mesh.bus.credentials import TlsFiles
from mesh.bus.roles import ADMIN
from mesh.client import Client
from mesh.fleet.file import load_fleet
from mesh.fleet.setup import apply
from mesh.local.server import EmbeddedServer
from mesh.ops import health
from tests.certificates import Authority
from tests.deploy.place import Place, Service, has, load, more, service
from tests.integration.test_tls import block
from tests.servers import eventually, until

NOT_SECURED = "bus_not_secured"


class Mesh:
    """A server that wants certificates, a guard and an agent, each with files of its own."""

    def __init__(self, directory: Path, *, days: float = 1) -> None:
        self._place = Place(directory)
        self._authority = Authority(directory, days=2 * days)
        self.files = {
            name: self._authority.sign(name, days=days) for name in ("server", "guard", "echo", "app")
        }

    def expired(self, name: str) -> None:
        self._authority.sign(name, expired=True)

    def renewed(self, name: str, days: float = 1) -> None:
        self._authority.sign(name, days=days)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[EmbeddedServer, dict[str, Service], Client]]:
        place, files = self._place, self.files
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(place.served(block(files["server"], verify=True)))
            async with await connect(
                server.url, name=ADMIN, seed=place.seed(ADMIN), tls=files["app"]
            ) as admin:
                await apply(admin, load_fleet(place.file))
            begun = {"guard": ("guard", "run"), "echo": ("agent", "run", "tests.deploy.echo:echo")}
            services = {
                name: await stack.enter_async_context(
                    service(place, server.url, name, *arguments, tls=files[name])
                )
                for name, arguments in begun.items()
            }
            for each in services.values():
                await eventually(each.is_ready)
            client = await stack.enter_async_context(await self._client(server, files["app"]))
            yield server, services, client

    async def _client(self, server: EmbeddedServer, files: TlsFiles) -> Client:
        return await Client.connect(server.url, name="app", seed=self._place.seed("app"), tls=files)

    async def doctor(self, server: EmbeddedServer, name: str) -> list[str]:
        """Return what doctor finds of certificates, for a viewer with the files of this name."""
        files = self.files[name]
        async with await connect(server.url, name=ADMIN, seed=self._place.seed(ADMIN), tls=files) as bus:
            found = await health.run("certificates", health.Look(bus, tls=files))
        return [each.text.replace(str(files.cert), name) for each in found if each.state == "found"]


async def again(server: EmbeddedServer) -> None:
    """Let the server take the certificate that is there now, and everybody connect anew."""
    await server.kill()
    await server.start()


async def all_ready(services: Sequence[Service]) -> None:
    for each in services:
        await eventually(each.is_ready)


async def test_a_server_whose_certificate_expired_is_named_by_all_and_nothing_is_lost(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    async with mesh.running() as (server, services, client), load(client, through_outages=True) as served:
        await more(served)
        mesh.expired("server")
        await again(server)
        for each in services.values():
            await eventually(lambda each=each: has(each, NOT_SECURED))  # type: ignore[misc]
            told = next(line for line in each.lines() if line.get("event") == NOT_SECURED)
            assert "certificate has expired" in told["reason"]
        await until(lambda: NOT_SECURED in [each.code for each in client._bus.conditions.reasons()])
        mesh.renewed("server")
        await again(server)
        await all_ready(list(services.values()))
        await more(served)


async def test_an_agent_whose_certificate_expired_says_so_and_takes_the_renewed_one_by_itself(
    tmp_path: Path,
) -> None:
    mesh = Mesh(tmp_path)
    async with mesh.running() as (server, services, client), load(client, through_outages=True) as served:
        agent = services["echo"]
        await more(served)
        mesh.expired("echo")
        await more(served)  # a connection that stands outlives its certificate
        await again(server)
        await eventually(lambda: has(agent, NOT_SECURED))
        told = next(line for line in agent.lines() if line.get("event") == NOT_SECURED)
        assert str(mesh.files["echo"].cert) in told["reason"]
        await eventually(services["guard"].is_ready)
        mesh.renewed("echo")
        await eventually(agent.is_ready)
        await more(served)


async def test_doctor_names_what_expires_within_two_weeks(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path, days=health.EXPIRES_DAYS + 1)
    async with mesh.running() as (server, _, _):
        assert await mesh.doctor(server, "app") == []
        mesh.renewed("app", days=health.EXPIRES_DAYS - 1)
        [told] = await mesh.doctor(server, "app")
        assert told.startswith("the certificate app expires at ")
        mesh.renewed("server", days=health.EXPIRES_DAYS - 1)
        await again(server)
        [told] = await mesh.doctor(server, "guard")
        assert told.startswith("the certificate of the bus's server expires at ")
