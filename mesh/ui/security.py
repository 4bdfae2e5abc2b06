"""The page's gate: who may open it, and which forms it accepts.

Five things keep other pages and other people out. The server answers only under its own names, so that no
foreign DNS name can be rebound to it. A visitor shows the token once, in the printed address or in a form,
and gets a session for it. The session is in one signed cookie that no script can read, until the visitor ends
it or stays away. Every change is made by a form that only our own pages have, sent from our own origin. And
the browser is instructed to load, run and embed nothing but our own files.

Every request goes through one gate, so that no route can forget to ask. Every change is a POST of a form, and
nothing else is. It passes if it is small, comes from our own page with that page's token, names a person, and
the page may write. Routes find the form in the scope.
"""

import base64
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mesh.ui import Options
from mesh.ui.sessions import EndedSessions
from mesh.web.bodies import BodyCutShort, BodyTooLarge, read_body

if TYPE_CHECKING:
    from mesh.ui.page import Page


IDLE_S = 12 * 3600
"""How long a session lasts without a request (s)."""
LASTS_S = 7 * 24 * 3600
"""How long it lasts in all (s)."""
MOST_BODY = 256 << 10
"""Bytes of a form: more than the guard accepts as an answer."""
MOST_FIELDS = 200
MOST_NAME = 80
"""Characters of a person's name."""

HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every answer."""


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """A session: the signed content of its cookie."""

    id: str
    by: str = ""
    """The name that they entered."""
    known: bool = False
    """True if they have shown the token."""
    told: str = ""
    """What the next view reports: how the last form ended."""
    until: int
    """UTC s; later requests extend it."""
    last: int
    """UTC s; never extended."""


class Security:
    """The secrets of one served page. They end with its process, unless the options give a lasting one."""

    def __init__(self, options: Options, port: int) -> None:
        self._options = options
        self._key = options.session_key or secrets.token_bytes(32)
        self.cookie = f"mesh_ui_{port}"  # browsers share cookies among the ports of a host
        self._hosts = {"127.0.0.1", "localhost", "::1"} if options.is_loopback else {options.host}
        self._hosts |= {name.lower() for name in options.names}
        self._ended = EndedSessions(options.ended_sessions)
        self._is_any = options.host in ("0.0.0.0", "::")

    # --- where it comes from ----------------------------------------------------------------------

    def is_ours(self, host: str) -> bool:
        """Return True if a Host header names this page. A numeric address cannot be rebound."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._hosts or (self._is_any and _is_address(name))

    def is_own_origin(self, headers: Mapping[str, str]) -> bool:
        """Return True if a form came from one of our own pages, or the browser sent no origin."""
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = headers.get("origin")
        return origin is None or urlsplit(origin).netloc == headers.get("host")

    # --- sessions ---------------------------------------------------------------------------------

    def fresh(self, by: str = "", *, known: bool = False) -> Visit:
        """Return a new session."""
        now = int(time.time())
        return Visit(
            id=secrets.token_urlsafe(16),
            by=by[:MOST_NAME],
            known=known,
            until=now + IDLE_S,
            last=now + LASTS_S,
        )

    def prolonged(self, visit: Visit) -> Visit:
        """Return the session, extended if half of its time without a request is over."""
        now = int(time.time())
        until = min(now + IDLE_S, visit.last)
        return msgspec.structs.replace(visit, until=until) if until - visit.until > IDLE_S // 2 else visit

    def end(self, visit: Visit) -> None:
        """End a session for good, also for copies of its cookie."""
        if visit.known:  # any other opens nothing that a new session would not
            self._ended.add(visit.id, visit.last)

    def is_over(self, visit: Visit) -> bool:
        return visit.until <= time.time() or visit.id in self._ended

    def named(self, visit: Visit, by: str) -> Visit:
        """Return the same session with a person's name."""
        return msgspec.structs.replace(visit, by=by.strip()[:MOST_NAME])

    def is_token(self, shown: str) -> bool:
        """Return True if this is the token; it takes the same time for every text."""
        token = self._options.token or ""
        return bool(token) and hmac.compare_digest(shown.encode(), token.encode())

    def may_enter(self, visit: Visit, authorization: str) -> bool:
        """Return True if a visitor has shown the token, or none is required."""
        kind, _, shown = authorization.partition(" ")
        bearer = kind.lower() == "bearer" and self.is_token(shown.strip())
        return self._options.token is None or visit.known or bearer

    def csrf(self, visit: Visit) -> str:
        """Return what each form of a session has to contain."""
        return self._sign(b"form", visit.id.encode())

    def is_csrf(self, visit: Visit, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self.csrf(visit).encode())

    def visit_in(self, cookies: str) -> Visit | None:
        """Return the session in a Cookie header; None if it has none of ours, or a forged one."""
        try:
            found = SimpleCookie(cookies).get(self.cookie)
            body, _, signature = ("" if found is None else found.value).partition(".")
            if not hmac.compare_digest(signature.encode(), self._sign(b"visit", body.encode()).encode()):
                return None
            visit = msgspec.json.decode(base64.urlsafe_b64decode(body), type=Visit)
        except (CookieError, ValueError, msgspec.DecodeError):
            return None
        return None if self.is_over(visit) else visit

    def set_cookie(self, visit: Visit) -> str:
        """Return the Set-Cookie header that keeps a session.

        Links from elsewhere, such as a chat, send it along; forms from elsewhere do not.
        """
        body = base64.urlsafe_b64encode(msgspec.json.encode(visit)).decode()
        value = f"{body}.{self._sign(b'visit', body.encode())}"
        return f'{self.cookie}="{value}"; Path=/; Max-Age={IDLE_S}; HttpOnly; SameSite=Lax'

    def _sign(self, what: bytes, body: bytes) -> str:
        return hmac.new(self._key, what + b":" + body, hashlib.sha256).hexdigest()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


# --- the gate -----------------------------------------------------------------------------------


FORM = "application/x-www-form-urlencoded"
STATIC = "/static/"
LOGIN = "/login"
"""What a visitor may see without the token; whole paths, since `/mesh` begins with `/me`."""
OWN = frozenset({LOGIN, "/login/out", "/me"})
"""Forms about the visitor's own session: they change nothing in the mesh."""


class Turned(Exception):
    """A request that does not pass."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, page: "Page") -> None:
        self._app, self._page, self._security = app, page, page.security

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        before = self._security.visit_in(headers.get("cookie", ""))
        scope["mesh.visit"] = self._security.fresh() if before is None else self._security.prolonged(before)
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
        """Return the answer in place of the route's; None if the request passes. Raises Turned."""
        path, visit = scope["path"], scope["mesh.visit"]
        if not self._security.is_ours(headers.get("host", "")):
            raise Turned(421, "this page does not answer under that host name; start it with --name NAME")
        is_open = path == LOGIN or path.startswith(STATIC)
        if scope["method"] == "GET" and (led := self._with_token_in_address(scope)) is not None:
            return led
        if not is_open and not self._security.may_enter(visit, headers.get("authorization", "")):
            if "hx-request" in headers:  # the whole page is then loaded again, and redirected to the form
                return Response(status_code=401, headers={"hx-refresh": "true"})
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

    def _with_token_in_address(self, scope: Scope) -> Response | None:
        """Return where to go on without the token, or the form for a wrong one; None if there is none."""
        if self._page.options.token is None or b"token=" not in scope["query_string"]:
            return None
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in asked if name == "token"]
        if not tokens:
            return None
        rest = urlencode([each for each in asked if each[0] != "token"])
        goes_on = _own_path("/" if scope["path"] == LOGIN else quote(scope["path"]))
        goes_on += f"?{rest}" if rest else ""
        if not self._security.is_token(tokens[-1]):
            return self._page.login(Request(scope), goes_on, wrong=True)
        scope["mesh.visit"] = self._security.fresh(scope["mesh.visit"].by, known=True)
        return RedirectResponse(goes_on, 303)

    def _check_person(self, scope: Scope, form: Mapping[str, str]) -> None:
        """Find out who acts, and raise Turned unless the page may act for them."""
        if not self._page.options.allow_write:
            raise Turned(403, "this page is read-only; nothing was done: start it with --allow-write")
        visit: Visit = scope["mesh.visit"]
        name = form.get("by", "").strip()
        if not self._page.options.by and not visit.by and name:
            scope["mesh.visit"] = visit = self._security.named(visit, name)
        if not (self._page.options.by or visit.by):
            raise Turned(400, "say your name first: it is recorded with what you do; nothing was done")


async def _form(headers: Headers, receive: Receive) -> dict[str, str]:
    """Return the fields of a form. Raises Turned."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise Turned(415, f"a form is sent as {FORM}; nothing was done")
    try:
        body = await read_body(receive, MOST_BODY)
    except BodyCutShort:
        raise Turned(400, "the form was not sent whole; nothing was done") from None
    except BodyTooLarge:
        raise Turned(413, f"a form has {MOST_BODY >> 10} KiB at most; nothing was done") from None
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


# --- the visitor's own views --------------------------------------------------------------------


def routes(page: "Page") -> list[Route]:
    async def login(request: Request) -> Response:
        return page.login(request, _own_path(request.query_params.get("next", "")), wrong=False)

    async def enter(request: Request) -> Response:
        form = request.scope["mesh.form"]
        goes_on = _own_path(form.get("next", ""))
        if page.options.token is not None and not page.security.is_token(form.get("token", "").strip()):
            return page.login(request, goes_on, wrong=True)
        request.scope["mesh.visit"] = page.security.fresh(request.scope["mesh.visit"].by, known=True)
        return RedirectResponse(goes_on, 303)

    async def me(request: Request) -> Response:
        return page.render(request, "me.html")

    async def rename(request: Request) -> Response:
        form, visit = request.scope["mesh.form"], request.scope["mesh.visit"]
        request.scope["mesh.visit"] = page.security.named(visit, form.get("by", ""))
        return RedirectResponse(_own_path(form.get("next", "")), 303)

    async def leave(request: Request) -> Response:
        page.security.end(request.scope["mesh.visit"])
        request.scope["mesh.visit"] = page.security.fresh()
        return RedirectResponse("/", 303)

    return [
        Route("/login", login),
        Route("/login", enter, methods=["POST"]),
        Route("/login/out", leave, methods=["POST"]),
        Route("/me", me),
        Route("/me", rename, methods=["POST"]),
    ]


def _own_path(path: str) -> str:
    """Return where to go on: a path of this page, never another site."""
    return path if path.startswith("/") and not path.startswith("//") and "\\" not in path else "/"
