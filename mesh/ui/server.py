"""The page's web server: started in the caller's event loop, and gone with the block that started it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn

from mesh.ui.app import create_app
from mesh.ui.options import Keys, Options
from mesh.ui.page import Page

_LAST_ANSWERS_S = 2
"""How long answers that are under way may take when the server ends, in seconds."""
_HEAD_BYTES = 32 << 10
"""Of a request's line and headers."""


class _Server(uvicorn.Server):
    """A server that says when it is up, and leaves the process's signals to whose they are."""

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
async def served(keys: Keys, options: Options) -> AsyncIterator[str]:
    """Serve the page while the block runs; give its address. Raises UsageWrong, OSError, BusError."""
    options.check()
    with contextlib.closing(_listening(options)) as listening:
        host, port = listening.getsockname()[:2]
        async with Page(keys, options, port) as page:
            config = uvicorn.Config(
                create_app(page),
                log_config=None,
                log_level="warning",
                access_log=False,
                http="h11",
                ws="none",
                lifespan="off",
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=_HEAD_BYTES,
                timeout_graceful_shutdown=_LAST_ANSWERS_S,
            )
            server = _Server(config)
            running = asyncio.create_task(server.serve(sockets=[listening]))
            up = asyncio.create_task(server.up.wait())
            try:
                await asyncio.wait({running, up}, return_when=asyncio.FIRST_COMPLETED)
                shown = f"[{host}]" if ":" in host else host
                yield f"http://{shown}:{port}"
            finally:
                up.cancel()
                page.stopping.set()  # streams end by themselves
                server.should_exit = True
                await running


def _listening(options: Options) -> socket.socket:
    """Return a socket that is bound. Raises OSError."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((options.host, options.port))
    except OSError:
        bound.close()
        raise
    return bound
