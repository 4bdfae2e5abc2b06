"""The life of a service's process: wait for the bus, work, and drain on SIGTERM or SIGINT.

If asked to, it answers probes meanwhile (`mesh.service.conditions`). A second signal does not make it faster.
SIGKILL does, and costs nothing but a redelivery. At SIGHUP it reads its key again: it may have been replaced.
"""

import asyncio
import contextlib
import gc
import io
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from mesh.errors import BusError
from mesh.service.conditions import Conditions, Probes, Reason
from mesh.service.logs import configure_logging
from mesh.telemetry.export import configure_telemetry

_FLUSH_S = 2.0
_RARELY = (50_000, 20, 100)
"""Collector thresholds: new objects per youngest collection, and collections per older one."""


class Connection(Protocol):
    """A connection to the bus, as this module needs it."""

    conditions: Conditions

    @property
    def connected(self) -> bool: ...

    async def flush(self) -> None: ...

    def renew(self) -> None: ...

    async def close(self) -> None: ...


class Worker(Protocol):
    """A guard or an agent's runtime."""

    @property
    def ready(self) -> bool: ...

    async def run(self) -> None: ...

    async def drain(self, grace_s: float) -> None: ...


class _Service:
    """One service: its connection, its worker, and why it takes no work."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], make: Callable[[Any], Worker]) -> None:
        self._connect = connect
        self._make = make
        self._bus: Connection | None = None
        self._worker: Worker | None = None
        self._leaving = False
        self._began = time.monotonic()

    def reasons(self) -> list[Reason]:
        """Return why the service takes no work; empty if it does."""
        found: list[Reason] = []
        since_s = round(time.monotonic() - self._began, 3)
        if self._leaving:
            found.append(Reason("draining", "it ends, and takes no more work"))
        if self._bus is None:
            return [*found, Reason("bus_awaited", "the bus does not answer yet", since_s)]
        found += self._bus.conditions.reasons()
        if not found and not self._bus.connected:
            found.append(Reason("bus_disconnected", "no connection to the bus"))
        if not found and (self._worker is None or not self._worker.ready):
            found.append(Reason("starting", "it does not take work yet", since_s))
        return found

    def _renew(self) -> None:
        """Take a key that was replaced. A connection that is still to be made takes it anyway."""
        if self._bus is not None:
            self._bus.renew()

    async def serve(self, grace_s: float) -> None:
        """Work until a signal comes, then drain for at most `grace_s`."""
        signalled = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signalled.set)
        loop.add_signal_handler(signal.SIGHUP, self._renew)
        ending = asyncio.create_task(signalled.wait())
        connecting = asyncio.ensure_future(self._connect())
        if not await _first(ending, connecting):
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
            return
        async with contextlib.AsyncExitStack() as stack:
            bus = self._bus = connecting.result()
            stack.push_async_callback(bus.close)
            worker = self._worker = self._make(bus)
            working = asyncio.create_task(worker.run())
            if await _first(ending, working):
                return
            self._leaving = True
            await worker.drain(grace_s)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            with contextlib.suppress(BusError, TimeoutError):
                async with asyncio.timeout(_FLUSH_S):
                    await bus.flush()  # the last acknowledgements are being sent


def run_service(
    name: str,
    connect: Callable[[], Awaitable[Connection]],
    make: Callable[[Any], Worker],
    *,
    grace_s: float,
    health: str | None = None,
    log_format: str = "auto",
    log_level: str = "info",
) -> None:
    """Run a service until a signal ends it, then return.

    Args:
        name: the member whose credentials it has.
        connect: returns a connection, however long that takes.
        make: returns the worker for a connection.
        grace_s: how long it may finish its work (s); the rest is given back to the bus.
        health: HOST:PORT to answer probes on.
        log_format, log_level: as in `configure_logging`.

    Raises AuthenticationFailed, TlsFailed, ProbesUnusable, TelemetryUnavailable, and the errors of
    `Worker.run`.
    """
    configure_logging(log_format, log_level, for_good=True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # an author's prints are read as they come, also from a pipe
        sys.stdout.reconfigure(line_buffering=True)
    service = _Service(connect, make)

    async def serve() -> None:
        async with contextlib.AsyncExitStack() as stack:
            if health is not None:
                probes = await stack.enter_async_context(Probes(health, service.reasons))
                if metrics is not None:
                    probes.add("/metrics", metrics)
            await service.serve(grace_s)

    with configure_telemetry(f"mesh-{name}", prometheus=health is not None) as metrics:
        collect_rarely()
        asyncio.run(serve())


def collect_rarely() -> None:
    """Tune this process's garbage collector for a service. Call it once, when everything is imported.

    Imported modules live as long as the process, and a message leaves hardly any cycle behind. Searching for
    cycles as often as Python does by default cost a guard a fifth of its time (bench/README.md).
    """
    gc.freeze()
    gc.set_threshold(*_RARELY)


async def _first(ending: "asyncio.Task[Any]", task: "asyncio.Future[Any]") -> bool:
    """Wait for `task`; return True if it was done before the signal to end. Raises the error of `task`."""
    await asyncio.wait((ending, task), return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        return False
    task.result()
    return True
