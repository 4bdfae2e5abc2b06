"""Who visits the page: the token is shown once, and a name is said once."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from mesh.ui.page import Page


def routes(page: Page) -> list[Route]:
    async def login(request: Request) -> Response:
        return page.render(
            request, "login.html", next=_own_path(request.query_params.get("next", "")), wrong=False
        )

    async def enter(request: Request) -> Response:
        form = request.scope["mesh.form"]
        goes_on = _own_path(form.get("next", ""))
        if page.options.token is not None and not page.security.is_token(form.get("token", "").strip()):
            return page.render(request, "login.html", status=403, next=goes_on, wrong=True)
        request.scope["mesh.visit"] = page.security.fresh(request.scope["mesh.visit"].by, known=True)
        return RedirectResponse(goes_on, 303)

    async def me(request: Request) -> Response:
        return page.render(request, "me.html")

    async def rename(request: Request) -> Response:
        form, visit = request.scope["mesh.form"], request.scope["mesh.visit"]
        request.scope["mesh.visit"] = page.security.named(visit, form.get("by", ""))
        return RedirectResponse(_own_path(form.get("next", "")), 303)

    async def leave(request: Request) -> Response:
        request.scope["mesh.visit"] = page.security.fresh()
        return RedirectResponse("/", 303)

    return [
        Route("/login", login),
        Route("/login", enter, methods=["POST"]),
        Route("/login/out", leave, methods=["POST"]),
        Route("/me", me),
        Route("/me", rename, methods=["POST"]),
    ]


def _own_path(said: str) -> str:
    """Return where to go on: a path of this page, never another site."""
    return said if said.startswith("/") and not said.startswith("//") and "\\" not in said else "/"
