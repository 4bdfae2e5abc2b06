"""The page's web server, its routes and its errors. It runs in the caller's event loop."""

import contextlib
from collections.abc import AsyncIterator, Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mesh.errors import BusError, MeshError
from mesh.service.logs import get_logger
from mesh.ui import Keys, Options, batches, chat, diff, fleet, people, requests, security, statistics
from mesh.ui.page import Page
from mesh.ui.security import Gate
from mesh.web.server import bind, serving_app


@contextlib.asynccontextmanager
async def served(keys: Keys, options: Options) -> AsyncIterator[str]:
    """Serve the page while the block runs; yield its address. Raises UsageWrong, BusError."""
    options.check()
    with contextlib.closing(bind(options.host, options.port, "the page")) as bound:
        async with (
            Page(keys, options, bound.getsockname()[1]) as page,
            serving_app(create_app(page), bound, options.limits, page.stopping.set) as address,
        ):
            yield address


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
