"""A whole bus on this machine: server, accounts, keys, streams. What tests and first tries stand on."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

from mesh.bus import accounts, provision, roles, streams
from mesh.bus.connection import Bus, connect
from mesh.bus.keys import KeyPair, keyring
from mesh.local.server import EmbeddedServer
from protocol.wire.config import Fleet


class LocalBus:
    """`async with LocalBus(fleet, directory) as mesh:` then `await mesh.connect_as("billing")`.

    The server runs under the very configuration that a deployment gets.

    Args:
        directory: where keys and store lie; a second start finds them again.
        sync_always: fsync every message. Tests of anything but durability do without.
        anonymous: the client that connections without credentials are.
    """

    def __init__(
        self,
        fleet: Fleet,
        directory: Path,
        *,
        sync_always: bool = False,
        anonymous: str | None = None,
        storage: streams.Storage = streams.DEFAULT_STORAGE,
    ) -> None:
        self.fleet = fleet
        self.keys: dict[str, KeyPair] = keyring(directory / "keys", roles.names(fleet))
        self._storage = storage
        publics = {name: key.public for name, key in self.keys.items()}
        self.server = EmbeddedServer(
            accounts.accounts_config(fleet, publics, anonymous=anonymous),
            directory / "store",
            sync_always=sync_always,
            probe_seed=self.keys[roles.ADMIN].seed,
        )

    @property
    def url(self) -> str:
        return self.server.url

    async def start(self) -> None:
        """Start the server and provision it."""
        await self.server.start()
        async with self.connected_as(roles.ADMIN) as admin:
            await provision.provision(admin, self.fleet, self._storage)

    async def stop(self) -> None:
        await self.server.stop()

    async def connect_as(self, name: str) -> Bus:
        """Return a connection with the credentials of `name`; the caller closes it."""
        return await connect(self.url, name=name, seed=self.keys[name].seed)

    @contextlib.asynccontextmanager
    async def connected_as(self, name: str) -> AsyncIterator[Bus]:
        """Give a connection with the credentials of `name`, and close it."""
        async with await self.connect_as(name) as bus:
            yield bus

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
