"""What waits for people, and what they decide."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.ops import queue
from mesh.ui.page import Page


def routes(page: Page) -> list[Route]:
    async def many(request: Request) -> Response:
        found = await queue.queue(page.bus)
        return page.render(request, "people.html", waiting=found.waiting, unreadable=found.unreadable)

    return [Route("/people", many)]
