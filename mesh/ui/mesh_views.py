"""The agents of the mesh, and the mesh as a whole."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.ops import dead_letters, roster
from mesh.ui.page import Page


def routes(page: Page) -> list[Route]:
    async def agents(request: Request) -> Response:
        return page.render(request, "agents.html", members=await roster.roster(page.bus))

    async def mesh(request: Request) -> Response:
        letters = [each async for each in dead_letters.letters(page.bus)]
        return page.render(request, "mesh.html", letters=letters, freeze=await roster.mesh_freeze(page.bus))

    return [Route("/agents", agents), Route("/mesh", mesh)]
