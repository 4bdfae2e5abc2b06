"""A service's process: wait for the bus, work, and on SIGTERM or SIGINT finish what is in hand and go.

Where it is asked to, it answers meanwhile whether it lives and whether it takes work
(`mesh.service.probes`). The second signal does not make it faster; SIGKILL does, and costs nothing but a
redelivery.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from typing import Any, Protocol

from mesh.bus.connection import Bus
from mesh.errors import BusError
from mesh.service.conditions import Reason
from mesh.service.gc import collect_rarely
from mesh.service.logs import configure_logging
from mesh.service.parent_death import hold
from mesh.service.probes import Health, Page
from mesh.service.telemetry import Telemetry, configure_telemetry
from mesh.settings import Access, load_settings

_LAST_WORDS_S = 2.0


class Worker(Protocol):
    """A guard or an agent's runtime."""

    @property
    def ready(self) -> bool: ...

    async def run(self) -> None: ...

    async def drain(self, grace_s: float) -> None: ...


class Standing:
    """Where a service stands, for whoever asks whether it takes work."""

    def __init__(self) -> None:
        self.bus: Bus | None = None
        self.worker: Worker | None = None
        self.leaving = False
        self._began = time.monotonic()

    def reasons(self) -> list[Reason]:
        """Return why it takes no work; nothing when it does."""
        found: list[Reason] = []
        since_s = round(time.monotonic() - self._began, 3)
        if self.leaving:
            found.append(Reason("draining", "it ends, and takes no more work"))
        if self.bus is None:
            return [*found, Reason("bus_awaited", "the bus does not answer yet", since_s)]
        found += self.bus.conditions.reasons()
        if not found and not self.bus.connected:
            found.append(Reason("bus_disconnected", "no connection to the bus"))
        if not found and (self.worker is None or not self.worker.ready):
            found.append(Reason("starting", "it does not take work yet", since_s))
        return found


def run_service(
    access: Access, make: Callable[[Bus], Worker], *, grace_s: float, health: str | None = None
) -> None:
    """Run a service until it is told to end, then return.

    Args:
        grace_s: how long it may finish what it holds; the rest is given back to the bus.
        health: HOST:PORT to answer probes on; else what MESH_HEALTH says, else nowhere.

    Raises AuthenticationFailed, TlsFailed, HealthUnusable, TelemetryUnavailable, and what `run` raises.
    """
    settings = load_settings()
    configure_logging(settings.log_format, settings.log_level or "info", for_good=True)
    hold()
    at = health or settings.health or None
    with configure_telemetry(f"mesh-{access.name}", prometheus=at is not None) as telemetry:
        collect_rarely()
        asyncio.run(_answering(access, make, grace_s, at, telemetry))


async def _answering(
    access: Access, make: Callable[[Bus], Worker], grace_s: float, health: str | None, telemetry: Telemetry
) -> None:
    standing = Standing()
    async with contextlib.AsyncExitStack() as stack:
        if health is not None:
            answering = await stack.enter_async_context(Health(health, standing.reasons))
            if (shown := telemetry.page) is not None:
                answering.add("/metrics", lambda: Page(200, *shown()))
        await _serve(access, make, grace_s, standing)


async def _serve(access: Access, make: Callable[[Bus], Worker], grace_s: float, standing: Standing) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    ending = asyncio.create_task(told.wait())
    connecting = asyncio.create_task(access.connect(wait=True))
    if not await _first(ending, connecting):
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        return
    async with connecting.result() as bus:
        standing.bus = bus
        worker = standing.worker = make(bus)
        working = asyncio.create_task(worker.run())
        if await _first(ending, working):
            return
        standing.leaving = True
        await worker.drain(grace_s)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await bus.settle()  # the last acknowledgements are on their way


async def _first(ending: "asyncio.Task[Any]", task: "asyncio.Task[Any]") -> bool:
    """Wait for `task`, and say whether it was done before the signal to end came. Raises what it raises."""
    await asyncio.wait((ending, task), return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        return False
    task.result()
    return True
