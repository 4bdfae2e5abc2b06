"""The standard streams of an MCP server that runs as our child process, read within bounds.

The SDK's own transport joins whatever a server writes until a newline comes. A server that never writes one
costs the agent's event loop more with each piece, for ever. Here the size of a line is limited, and so is the
total that comes for each message of ours. A server that exceeds either limit is stopped.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from mesh.service.logs import get_logger

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

_log = get_logger(__name__)


class Bounds(NamedTuple):
    """Limits on what a server may write."""

    line_bytes: int = 8 << 20
    """Size of one message. The largest useful ones hold a picture."""
    unasked_bytes: int = 64 << 20
    """Size of all messages that come while nothing is sent."""
    bad_lines: int = 1_000
    """In a row. Many servers print a few lines that are not messages; a flood of them is an attack."""


_FLUSH_S = 0.5
GRACE_S = 2.0
_KILLED_S = 30.0
"""How long a process may take to end after SIGKILL. A busy machine may need seconds for it, and to say so."""
_POLL_S = 0.01


BOUNDS = Bounds()


@asynccontextmanager
async def streams(
    name: str,
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    bounds: Bounds = BOUNDS,
    grace_s: float = GRACE_S,
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server and yield the streams that the SDK uses. Raises OSError.

    The reading stream ends when the server ends, and when it writes more than it may.

    Args:
        grace_s: how long the server may take to end once its input is closed, and again after SIGTERM.
    """
    import anyio

    loop = asyncio.get_running_loop()
    starting = asyncio.ensure_future(
        loop.subprocess_exec(  # returns the transport, which has to be closed, too
            lambda: SubprocessStreamProtocol(limit=bounds.line_bytes, loop=loop),
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=sys.__stderr__ or sys.stderr,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    )
    cancelled = await _until_done(starting)
    transport, protocol = starting.result()
    process = Process(transport, protocol, loop)
    inbound_send, inbound = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
    to_send, sending = anyio.create_memory_object_stream["SessionMessage"](0)
    budget = _Budget(name, bounds)
    reading = asyncio.create_task(_read(process, inbound_send, budget))
    writing = asyncio.create_task(_write(process, sending, inbound_send, budget))
    try:
        if cancelled is not None:
            raise cancelled
        yield inbound, to_send
    finally:
        with anyio.CancelScope(shield=True):  # or no process would be waited for when a caller gives up
            inbound.close()
            to_send.close()  # the writer ends once it has written what it took
            ending = asyncio.create_task(_end(name, process, grace_s, reading, writing))
            cancelled = await _until_done(ending, lambda: _signal(process, signal.SIGKILL))
            inbound_send.close()
            sending.close()
            transport.close()  # a child of the server may hold its pipes for ever
            if cancelled is not None:
                raise cancelled
            ending.result()
            await asyncio.sleep(0)


async def _until_done(
    task: asyncio.Future[Any], hasten: Callable[[], None] = lambda: None
) -> asyncio.CancelledError | None:
    """Wait for a task even if the caller is cancelled meanwhile; then call `hasten`.

    Returns the caller's cancellation. anyio's shielded scopes hold off anyio's own cancellation, not this
    one.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as again:
            cancelled = again
            hasten()
    return cancelled


async def _end(
    name: str, process: Process, grace_s: float, reading: asyncio.Task[None], writing: asyncio.Task[None]
) -> None:
    try:
        await asyncio.wait({writing}, timeout=_FLUSH_S)
        await _stop(name, process, grace_s)
    except asyncio.CancelledError:  # the loop itself is ending
        _signal(process, signal.SIGKILL)
        await _ended(process, _KILLED_S)
        raise
    finally:
        for task in (reading, writing):
            task.cancel()
        await asyncio.gather(reading, writing, return_exceptions=True)


class _Budget:
    """How much a server may still write before something is sent to it."""

    def __init__(self, name: str, bounds: Bounds) -> None:
        self._name, self._bounds = name, bounds
        self._bytes, self._bad, self._warned = 0, 0, False

    def sent(self) -> None:
        """Start over: an answer is expected."""
        self._bytes = 0

    def allows(self, size: int) -> bool:
        """Count the bytes of a line; return False if there are too many."""
        self._bytes += size
        if self._bytes > self._bounds.unasked_bytes:
            self._exceeded(f"{self._bounds.unasked_bytes} bytes for one message of ours")
        return self._bytes <= self._bounds.unasked_bytes

    def allows_bad_line(self, size: int) -> bool:
        """Count a line that is not a message; return False if there are too many in a row."""
        self._bad += 1
        if not self._warned:
            self._warned = True  # once: a server may print thousands
            _log.warning("mcp_line_unreadable", server=self._name, bytes=size)
        if self._bad > self._bounds.bad_lines:
            self._exceeded(f"{self._bounds.bad_lines} lines in a row that are not messages")
        return self._bad <= self._bounds.bad_lines

    def good_line(self) -> None:
        self._bad = 0

    def line_too_long(self) -> None:
        """Note that the line does not end."""
        self._exceeded(f"{self._bounds.line_bytes} bytes without a newline")

    def _exceeded(self, most: str) -> None:
        _log.error("mcp_server_stopped", server=self._name, reason=f"it wrote more than {most}")


async def _read(process: Process, inbound: "MemoryObjectSendStream[Any]", budget: _Budget) -> None:
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    assert process.stdout is not None
    async with inbound:
        while True:
            try:
                line = await process.stdout.readuntil(b"\n")
            except asyncio.LimitOverrunError:
                return budget.line_too_long()
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            if not budget.allows(len(line)):
                return
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                if not budget.allows_bad_line(len(line)):
                    return
                await asyncio.sleep(0)  # otherwise a full buffer of bad lines would never yield
                continue
            budget.good_line()
            try:
                await inbound.send(SessionMessage(message))
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                return


async def _write(
    process: Process,
    sending: "MemoryObjectReceiveStream[SessionMessage]",
    inbound: "MemoryObjectSendStream[Any]",
    budget: _Budget,
) -> None:
    assert process.stdin is not None
    try:
        async with sending:
            async for each in sending:
                body = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                budget.sent()
                process.stdin.write(body.encode() + b"\n")
                await process.stdin.drain()
    except (OSError, ValueError, RuntimeError):  # its input is closed, or JSON cannot hold this text
        await inbound.aclose()  # or a request would wait for its answer for ever


async def _stop(name: str, process: Process, grace_s: float) -> None:
    """Close the server's input and wait until it has ended; end its whole process group if it does not."""
    assert process.stdin is not None
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if await _ended(process, grace_s):
            return
        _signal(process, number)
    if not await _ended(process, _KILLED_S):
        _log.warning("mcp_server_not_ended", server=name, pid=process.pid)


def _signal(process: Process, number: signal.Signals) -> None:
    """Send a signal to the server's whole process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _ended(process: Process, within_s: float) -> bool:
    """Return True once a process has ended; its children may keep its pipes open."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while process.returncode is None:  # noqa: ASYNC110 - `wait` also waits for its pipes
                await asyncio.sleep(_POLL_S)
    return process.returncode is not None
