"""Where it is measured: one fleet, one server of its own under the accounts that a deployment gets.

Mesh and ring each get such a place. What differs between them is only what lies in the streams and who
works on it; credentials, permissions, imports and the server's settings are the same text.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from mesh.bus.connection import Bus, connect
from mesh.bus.roles import ADMIN
from mesh.fleet.file import FleetFile, Sender, parse_fleet
from mesh.fleet.setup import KEYS, Prepared, prepare
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
    """
)

LOUD, OPERATOR = "loud", "ops"
FLOODED = FLEET.model_copy(
    update={"clients": {**FLEET.clients, LOUD: Sender()}, "operators": {OPERATOR: Sender()}}
)
"""The same fleet with a client who floods it, and an operator."""


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
