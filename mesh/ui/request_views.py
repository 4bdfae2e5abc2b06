"""Requests, as a list, and one with everything that happened in it."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.ops import log, requests
from mesh.ops.roster import with_served
from mesh.ui.page import Page
from protocol.views.timeline import timeline

PAGE = 50


def routes(page: Page) -> list[Route]:
    async def many(request: Request) -> Response:
        found, _ = await requests.recent(page.bus, limit=PAGE)
        return page.render(request, "requests.html", rows=found)

    async def one(request: Request) -> Response:
        bodies = await log.whole_request(page.bus, request.path_params["request"])
        happened = log.decoded(bodies)
        journals = await log.journals_of(page.bus, happened)
        told = await with_served(page.bus, timeline(happened, journals.steps))
        return page.render(request, "request.html", told=told)

    return [Route("/requests", many), Route("/requests/{request}", one)]
