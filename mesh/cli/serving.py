"""A service's process: wait for the bus, work, and on SIGTERM or SIGINT finish what is in hand and go.

The second signal does not make it faster; SIGKILL does, and costs nothing but a redelivery.
"""

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable
from typing import Any, Protocol

from mesh.bus.connection import Bus, connect
from mesh.errors import BusError
from mesh.leash import hold
from mesh.logs import configure_logging
from mesh.settings import Access, load_settings

_LAST_WORDS_S = 2.0


class Worker(Protocol):
    """A guard or an agent's runtime."""

    async def run(self) -> None: ...

    async def drain(self, grace_s: float) -> None: ...


def run_service(access: Access, make: Callable[[Bus], Worker], *, grace_s: float) -> None:
    """Run a service until it is told to end, then return.

    Args:
        grace_s: how long it may finish what it holds; the rest is given back to the bus.

    Raises AuthenticationFailed, and what `run` raises.
    """
    settings = load_settings()
    configure_logging(settings.log_format, settings.log_level or "info")
    hold()
    # What was imported lives as long as the process, and a message leaves hardly a cycle behind: looking
    # for them as often as Python does by default cost a guard a fifth of its time (docs/benchmarks.md).
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    asyncio.run(_serve(access, make, grace_s))


async def _serve(access: Access, make: Callable[[Bus], Worker], grace_s: float) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    ending = asyncio.create_task(told.wait())
    connecting = asyncio.create_task(connect(access.url, name=access.name, seed=access.seed, wait=True))
    if not await _first(ending, connecting):
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        return
    async with connecting.result() as bus:
        worker = make(bus)
        working = asyncio.create_task(worker.run())
        if await _first(ending, working):
            return
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
