"""The gate that every request to the page goes through, so that no route can forget to ask.

What changes anything is a POST of a form, and nothing else is. It passes if it is small, comes from our own
page with that page's token, names a person, and the page may write. Routes find the form in the scope.
"""

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mesh.ui.page import Page
from mesh.ui.security import HEADERS, MOST_BODY, MOST_FIELDS, Visit

FORM = "application/x-www-form-urlencoded"
STATIC = "/static/"
LOGIN = "/login"
"""What a visitor may see who has not shown the token; whole paths, for `/me` is where `/mesh` begins."""
OWN = frozenset({LOGIN, "/login/out", "/me"})
"""Forms about the visitor's own session: they change nothing in the mesh."""


class Turned(Exception):
    """A request that does not pass."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, page: Page) -> None:
        self._app, self._page, self._security = app, page, page.security

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        before = self._security.visit_in(headers.get("cookie", ""))
        scope["mesh.visit"] = before or self._security.fresh()
        answer: Response | None = None
        try:
            answer = await self._stopped(scope, headers, receive)
        except Turned as turned:
            answer = self._page.error(Request(scope), turned.status, turned.text, "ui.refused")

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    if not (name == "cache-control" and scope["path"].startswith(STATIC)):
                        out[name] = value
                if scope["mesh.visit"] != before:
                    out.append("set-cookie", self._security.set_cookie(scope["mesh.visit"]))
            await send(message)

        await (answer or self._app)(scope, receive, guarded)

    async def _stopped(self, scope: Scope, headers: Headers, receive: Receive) -> Response | None:
        """Return what is answered instead of the route; None if the request passes. Raises Turned."""
        path, visit = scope["path"], scope["mesh.visit"]
        if not self._security.is_ours(headers.get("host", "")):
            raise Turned(421, "this page does not answer under that host name; start it with --name NAME")
        is_open = path == LOGIN or path.startswith(STATIC)
        if not is_open and not self._security.may_enter(visit, headers.get("authorization", "")):
            if scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
                asked = path + (
                    "?" + scope["query_string"].decode("latin-1") if scope["query_string"] else ""
                )
                return RedirectResponse(f"/login?next={quote(asked, safe='')}", 303)
            raise Turned(401, "show the token first")
        if scope["method"] in ("GET", "HEAD"):
            return None
        if scope["method"] != "POST":
            raise Turned(405, "this page knows GET and POST")
        if not self._security.is_own_origin(headers):
            raise Turned(403, "the form was sent by another page; nothing was done")
        form = await _form(headers, receive)
        if not self._security.is_csrf(visit, form.get("csrf", "")):
            raise Turned(403, "the form is not from this session; nothing was done: load the page again")
        scope["mesh.form"] = form
        if path not in OWN:
            self._check_person(scope, form)
        return None

    def _check_person(self, scope: Scope, form: Mapping[str, str]) -> None:
        """Learn who acts, and raise Turned unless the page may act for them."""
        if not self._page.options.allow_write:
            raise Turned(403, "this page only shows; nothing was done: start it with --allow-write")
        visit: Visit = scope["mesh.visit"]
        said = form.get("by", "").strip()
        if not self._page.options.by and not visit.by and said:
            scope["mesh.visit"] = visit = self._security.named(visit, said)
        if not (self._page.options.by or visit.by):
            raise Turned(400, "say your name first: it is recorded with what you do; nothing was done")


async def _form(headers: Headers, receive: Receive) -> dict[str, str]:
    """Return the fields of a form. Raises Turned."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise Turned(415, f"a form is sent as {FORM}; nothing was done")
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Turned(400, "the form was not sent whole; nothing was done")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MOST_BODY:
            raise Turned(413, f"a form has {MOST_BODY >> 10} KiB at most; nothing was done")
    try:
        fields = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"
        )
    except ValueError as wrong:
        raise Turned(400, "the form cannot be read; nothing was done") from wrong
    names = [name for name, _ in fields]
    if len(names) != len(set(names)):
        raise Turned(400, "the form names a field twice; nothing was done")
    return dict(fields)
