"""SIGTERM as a Ctrl-C: whatever was started is stopped, in order, before the process goes."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import typer

from mesh.cli.exits import Exit


@contextlib.asynccontextmanager
async def ended_by_signals() -> AsyncIterator[None]:
    """End the block on SIGTERM and SIGHUP, as asyncio does on SIGINT, and then the command."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    came = False

    def end() -> None:
        nonlocal came
        if not came:  # once: what is being stopped is stopped to the end
            came = True
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end)
    try:
        yield
    except asyncio.CancelledError:
        if came:
            raise typer.Exit(Exit.INTERRUPTED) from None
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
