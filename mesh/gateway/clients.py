"""The gateway's connections to the bus: one for each client of the fleet that a token stands for."""

import asyncio
import contextlib
from collections.abc import Callable

from mesh.bus.connection import Bus
from mesh.bus.link import REFUSED
from mesh.client import Client
from mesh.errors import BusError, MeshError
from mesh.service.conditions import Conditions
from mesh.service.logs import get_logger
from mesh.settings import Access

_log = get_logger(__name__)


class ClientUnusable(MeshError, code="gateway.client_unusable"):
    """The gateway has no key of a token's client, or the bus does not accept it."""


class ClientPool:
    """Clients by name, each connected when it is first needed. It stands for the connection of the service.

    Args:
        access: returns how to reach the bus under a name. It may raise MeshError.
    """

    def __init__(self, access: Callable[[str], Access]) -> None:
        self._access = access
        self._opening: dict[str, asyncio.Task[Client]] = {}
        self._buses: dict[str, Bus] = {}
        self._stack = contextlib.AsyncExitStack()
        self.conditions = Conditions()

    async def open(self, names: frozenset[str]) -> "ClientPool":
        """Connect these clients, however long the bus takes. A client that cannot is logged."""
        for name in sorted(names):
            with contextlib.suppress(ClientUnusable):
                await self.get(name, wait=True)
        return self

    async def get(self, name: str, *, wait: bool = False) -> Client:
        """Return the client of a name. Raises ClientUnusable, and BusError if the bus is away."""
        opening = self._opening.get(name)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = self._opening[name] = asyncio.create_task(self._connect(name, wait))
        client = await asyncio.shield(opening)
        if self._is_refused(name):
            raise ClientUnusable(f"the gateway cannot act as {name!r} ({REFUSED.begins})")
        return client

    async def _connect(self, name: str, wait: bool) -> Client:
        try:
            access = self._access(name)
            bus = await access.connect(wait=wait, lasts=True)
        except MeshError as wrong:
            if isinstance(wrong, BusError) and wrong.code == "bus.unreachable":
                raise
            _log.error("gateway_client_unusable", client=name, code=wrong.code, detail=str(wrong))
            raise ClientUnusable(f"the gateway cannot act as {name!r} ({wrong.code})") from wrong
        self._buses[name] = bus
        client = await Client.on(bus, name)
        self._stack.push_async_callback(client.close)
        return client

    @property
    def connected(self) -> bool:
        """True if every client that was needed is connected, but for those whose key the bus refuses.

        Such a client has left the fleet, say. The others are served, so it does not make the gateway unready,
        unless there are no others.
        """
        usable = [bus for name, bus in self._buses.items() if not self._is_refused(name)]
        return bool(usable or not self._buses) and all(bus.connected for bus in usable)

    def _is_refused(self, name: str) -> bool:
        return any(reason.code == REFUSED.begins for reason in self._buses[name].conditions.reasons())

    async def flush(self) -> None:
        """Do nothing: whatever was promised to a caller is stored already."""

    def renew(self) -> None:
        """Let every client take its key again, which may have been replaced."""
        for bus in self._buses.values():
            bus.renew()

    async def close(self) -> None:
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await self._stack.aclose()
