"""Where it is measured: one fleet, one server of its own under the accounts that a deployment gets.

Mesh and ring each get such a place. What differs between them is only what lies in the streams and who
works on it; credentials, permissions, imports and the server's settings are the same text.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from bench.crew import Crew, Member
from mesh.bus.connection import Bus, connect
from mesh.bus.roles import ADMIN, GUARD
from mesh.client import Client
from mesh.fleet.file import FleetFile, GuardSection, parse_fleet
from mesh.fleet.members import Submitter
from mesh.fleet.setup import KEYS, Prepared, apply, prepare
from mesh.local.server import EmbeddedServer

AGENTS = ("a", "b", "c", "d", "e")
CLIENT = "app"
VIEWER = "audit"

FLEET: FleetFile = parse_fleet(
    f"""
    name = "bench"
    entry = "a"
    {"".join(f"[agents.{name}]{chr(10)}" for name in AGENTS)}
    [clients.{CLIENT}]
    [viewers.{VIEWER}]
    [human]
    [quota]
    open_requests = 10_000_000
    mib_per_hour = 1_000_000
    """
)

LOUD, OPERATOR = "loud", "ops"
FLOODED = FLEET.model_copy(
    update={"clients": {**FLEET.clients, LOUD: Submitter()}, "operators": {OPERATOR: Submitter()}}
)
"""The same fleet with a client who floods it, and an operator."""


def without_lane(fleet: FleetFile) -> FleetFile:
    """Return the same fleet without a lane."""
    return fleet.model_copy(update={"guard": GuardSection(lane=False)})


@dataclass(frozen=True)
class Place:
    """A running server and the keys to it."""

    server: EmbeddedServer
    prepared: Prepared

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def keys(self) -> Path:
        """The directory of the seeds, for processes that connect by themselves."""
        return self.prepared.directory / KEYS

    async def connect_as(self, name: str) -> Bus:
        return await connect(self.url, name=name, seed=self.prepared.keys[name].seed)


@contextlib.asynccontextmanager
async def place(directory: Path, *, sync_always: bool, fleet: FleetFile = FLEET) -> AsyncIterator[Place]:
    """Start a server without streams in `directory`, and stop it in the end."""
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    prepared = prepare(fleet, directory)
    server = EmbeddedServer(
        prepared.accounts,
        directory / "store",
        sync_always=sync_always,
        probe_seed=prepared.keys[ADMIN].seed,
    )
    async with server:
        yield Place(server, prepared)


@dataclass(frozen=True)
class Site:
    """A mesh to be manned: its streams are there, and nobody serves it yet."""

    at: Place
    admin: Bus
    client: Client
    crew: Crew

    async def start(self, module: str, role: str, *more: str, name: str = "") -> Member:
        """Start `python -m MODULE ROLE URL KEYS …`, named `name` or after its role."""
        return await self.crew.start(name or role, module, role, self.at.url, str(self.at.keys), *more)

    async def start_guard(self, name: str = GUARD) -> Member:
        return await self.start("bench.crew", GUARD, name, name=name)


@contextlib.asynccontextmanager
async def site(
    directory: Path, *, sync_always: bool = False, fleet: FleetFile = FLEET
) -> AsyncIterator[Site]:
    """Start a server and provision it for `fleet`; all that was started on it ends in the end."""
    async with (
        place(directory, sync_always=sync_always, fleet=fleet) as at,
        await at.connect_as(ADMIN) as admin,
        Crew(directory) as crew,
        await Client.connect(at.url, name=CLIENT, seed=at.prepared.keys[CLIENT].seed) as client,
    ):
        await apply(admin, fleet)
        yield Site(at, admin, client, crew)
