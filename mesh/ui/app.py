"""The page as an ASGI application: its routes, and what becomes of errors."""

from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mesh.errors import BusError, MeshError
from mesh.service.logs import get_logger
from mesh.ui import list_views, mesh_views, people_views, request_views, session_views
from mesh.ui.gate import Gate
from mesh.ui.page import Page

_log = get_logger(__name__)
_STATUS: Mapping[str, int] = {
    "agent.not_found": 404,
    "bus.denied": 403,
    "cli.impossible": 409,
    "cli.not_found": 404,
    "cli.refused": 409,
    "cli.usage": 400,
    "client.reply_invalid": 400,
    "ui.read_only": 403,
}
"""By an error's code; of the bus 503, of anything else that is known 422."""


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
            *list_views.routes(page),
            *request_views.routes(page),
            *people_views.routes(page),
            *mesh_views.routes(page),
            *session_views.routes(page),
            Mount("/static", StaticFiles(packages=[("mesh.ui", "static")]), name="static"),
        ],
        exception_handlers={MeshError: known, TimeoutError: late, HTTPException: http, Exception: unknown},
        middleware=[Middleware(Gate, page=page)],
    )
