"""Exit statuses: one for each way a command ends; and errors as one clear line, never a traceback.

The statuses are API: scripts branch on them. Only this file decides which error means which status. It uses
the errors' stable codes, so that it need not import what raises them.
"""

import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from enum import IntEnum
from typing import Any

import click
from click.exceptions import Exit as Leave

from mesh.cli.output import remark
from protocol.wire.errors import MeshError

__all__ = ["EPILOG", "Exit", "Leave", "ReportingGroup", "ended_by_signals", "leave", "status_of"]


class Exit(IntEnum):
    """The exit status of a command."""

    DONE = 0
    FAILED = 1
    """The request failed, or a check found something."""
    USAGE = 2
    REFUSED = 3
    """Refused by the guard."""
    UNREACHABLE = 4
    TIMED_OUT = 5
    NOTHING_JUDGED = 5
    """A replay found no round that it could run again."""
    INTERRUPTED = 130


EPILOG = (
    "Exit status: 0 done, 1 the request failed or a check found something, 2 usage, 3 refused by the guard, "
    "4 bus unreachable, 5 timed out waiting, 130 interrupted."
)

_STATUS = {
    "agent.not_found": Exit.USAGE,
    "bus.authentication": Exit.UNREACHABLE,
    "bus.bad_address": Exit.USAGE,
    "bus.disconnected": Exit.UNREACHABLE,
    "bus.no_responders": Exit.UNREACHABLE,
    "bus.outcome_unknown": Exit.UNREACHABLE,
    "bus.timed_out": Exit.UNREACHABLE,
    "bus.tls": Exit.UNREACHABLE,
    "bus.tls_files": Exit.USAGE,
    "bus.unreachable": Exit.UNREACHABLE,
    "cli.refused": Exit.REFUSED,
    "cli.usage": Exit.USAGE,
    "client.rejected": Exit.REFUSED,
    "client.reply_invalid": Exit.USAGE,
    "export.invalid": Exit.USAGE,
    "fleet.invalid": Exit.USAGE,
    "health.unusable": Exit.USAGE,
    "model.unavailable": Exit.USAGE,
    "settings.another_fleet": Exit.USAGE,
    "settings.context": Exit.USAGE,
    "settings.invalid": Exit.USAGE,
    "settings.no_credentials": Exit.USAGE,
    "telemetry.unavailable": Exit.USAGE,
    "ui.not_installed": Exit.USAGE,
}

_ENDS = {"completed": Exit.DONE, "refused": Exit.REFUSED}
"""By a request's end; every other end is a failure."""


def status_of(code: str) -> Exit:
    """Return the exit status for an error's code."""
    return _STATUS.get(code, Exit.FAILED)


def leave(status: str) -> None:
    """End the command with the exit status for a request's end, unless all is well."""
    code = _ENDS.get(status, Exit.FAILED)
    if code is not Exit.DONE:
        raise Leave(code)


class ReportingGroup(click.Group):
    """The root of all commands: errors that they raise on purpose become a line on standard error."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TimeoutError as late:
            _complain(str(late) or "timed out waiting", "timeout")
            raise Leave(Exit.TIMED_OUT) from None
        except KeyboardInterrupt:
            raise Leave(Exit.INTERRUPTED) from None
        except Exception as error:
            known = next(mesh_errors(error), None)
            if known is None:
                raise
            _complain(str(known), known.code)
            raise Leave(status_of(known.code)) from None


def mesh_errors(error: BaseException) -> Iterator[MeshError]:
    """Yield this project's own errors in `error`, including those in groups of tasks."""
    if isinstance(error, MeshError):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from mesh_errors(inner)


def _complain(text: str, code: str) -> None:
    remark(f"mesh: {text} [{code}]", lines=True)


@contextlib.asynccontextmanager
async def ended_by_signals() -> AsyncIterator[None]:
    """End the block on SIGTERM and SIGHUP, as asyncio does on SIGINT, and then the command.

    Everything that was started is stopped, in order, before the process ends. Only the main thread of a
    process gets signals; elsewhere the block runs as it is.
    """
    import asyncio

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    came = False

    def end() -> None:
        nonlocal came
        if not came:  # once: a second signal does not interrupt the stopping
            came = True
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end)
    try:
        yield
    except asyncio.CancelledError:
        if came:
            raise Leave(Exit.INTERRUPTED) from None
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
