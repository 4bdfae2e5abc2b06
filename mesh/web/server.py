"""Serving an application over HTTP, in the caller's event loop."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from mesh.errors import UsageWrong
from mesh.web.connections import ConnectionLimits, timed

_KEEP_ALIVE_S = 20
"""How long a connection may be idle between two requests (s).

HTTP clients keep one for a shorter time: undici 4 s, httpx 5, aiohttp 15. A request that crosses the server's
own end of a connection gets no answer.
"""
_LAST_ANSWERS_S = 2
"""How long running answers may take when the server ends (s)."""
_HEAD_BYTES = 32 << 10
"""The largest request line and headers, in bytes."""


class _Server(uvicorn.Server):
    """A server that reports when it is up, and leaves the process's signals to their owner."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving_app(
    app: ASGIApp, bound: socket.socket, limits: ConnectionLimits, stop: Callable[[], object]
) -> AsyncIterator[str]:
    """Serve an application on a bound socket while the block runs; yield its address.

    Args:
        stop: called when the block ends. It ends the streams.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        http=timed(limits),
        limit_concurrency=limits.connections,
        timeout_keep_alive=_KEEP_ALIVE_S,
        ws="none",
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        timeout_graceful_shutdown=_LAST_ANSWERS_S,
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[bound]))
    up = asyncio.create_task(server.up.wait())
    try:
        await asyncio.wait({running, up}, return_when=asyncio.FIRST_COMPLETED)
        yield address_of(bound)
    finally:
        up.cancel()
        stop()
        server.should_exit = True
        await running


def address_of(bound: socket.socket) -> str:
    """Return the address of what is served on a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bind(host: str, port: int, what: str) -> socket.socket:
    """Return a bound socket; port 0 lets the system choose. Raises UsageWrong, which names `what`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as wrong:
        bound.close()
        place = f"{host}:{port}"
        raise UsageWrong(
            f"{what} cannot be at {place}: {wrong.strerror or wrong}; name another --port"
        ) from wrong
    return bound
