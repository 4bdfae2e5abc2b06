"""The page's web server, its routes and its errors. It runs in the caller's event loop."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator, Mapping

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mesh.errors import BusError, MeshError, UsageWrong
from mesh.service.logs import get_logger
from mesh.ui import Keys, Options, batches, chat, diff, fleet, people, requests, security, statistics
from mesh.ui.connections import timed
from mesh.ui.page import Page
from mesh.ui.security import Gate

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
async def served(keys: Keys, options: Options) -> AsyncIterator[str]:
    """Serve the page while the block runs; yield its address. Raises UsageWrong, BusError."""
    options.check()
    with contextlib.closing(_listening(options)) as listening:
        host, port = listening.getsockname()[:2]
        async with Page(keys, options, port) as page:
            config = uvicorn.Config(
                create_app(page),
                log_config=None,
                log_level="warning",
                access_log=False,
                http=timed(options.limits),
                limit_concurrency=options.limits.connections,
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
    """Return a bound socket. Raises UsageWrong."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((options.host, options.port))
    except OSError as wrong:
        bound.close()
        place = f"{options.host}:{options.port}"
        raise UsageWrong(
            f"the page cannot be at {place}: {wrong.strerror or wrong}; name another --port"
        ) from wrong
    return bound


# --- the application ----------------------------------------------------------------------------


_log = get_logger(__name__)
_STATUS: Mapping[str, int] = {
    "agent.not_found": 404,
    "bus.denied": 403,
    "cli.impossible": 409,
    "cli.not_found": 404,
    "cli.refused": 409,
    "cli.usage": 400,
    "client.reply_invalid": 400,
    "client.reply_unjudged": 400,
    "ui.read_only": 403,
}
"""By an error's code; 503 for the bus, 422 for any other known error."""


def create_app(page: Page) -> Starlette:
    """Return the application of a page that has been entered."""

    async def home(request: Request) -> Response:
        return RedirectResponse("/requests", 303)

    async def known(request: Request, error: Exception) -> Response:
        assert isinstance(error, MeshError)
        status = _STATUS.get(error.code, 503 if isinstance(error, BusError) else 422)
        return page.error(request, status, str(error), error.code)

    async def late(request: Request, error: Exception) -> Response:
        return page.error(request, 504, str(error) or "it took too long", "timeout")

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = "there is no such page" if error.status_code == 404 else error.detail
        return page.error(request, error.status_code, text, "ui.http")

    async def unknown(request: Request, error: Exception) -> Response:
        _log.error("ui_failed", path=request.url.path, error=type(error).__name__, exc_info=error)
        return page.error(request, 500, "the page is broken here; its log says where", "ui.failed")

    return Starlette(
        routes=[
            Route("/", home),
            *requests.routes(page),
            *diff.routes(page),
            *batches.routes(page),
            *people.routes(page),
            *chat.routes(page),
            *fleet.routes(page),
            *statistics.routes(page),
            *security.routes(page),
            Mount("/static", StaticFiles(packages=[("mesh.ui", "static")]), name="static"),
        ],
        exception_handlers={MeshError: known, TimeoutError: late, HTTPException: http, Exception: unknown},
        middleware=[Middleware(Gate, page=page)],
    )
