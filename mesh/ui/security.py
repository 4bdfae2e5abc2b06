"""Who may open the page, and what a browser may be made to do with it.

Four things keep other pages and other people out. The server answers under its own names only, so that no
stranger's DNS name can be rebound to it. What changes anything is a form with a token that only our own
pages have, sent from our own origin. The session lives in one signed cookie that no script can read. And
the browser is told to load, run and embed nothing but our own files.
"""

import base64
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

import msgspec

from mesh.ui.options import Options

LASTS_S = 7 * 24 * 3600
"""How long a session lasts."""
MOST_BODY = 256 << 10
"""Bytes of a form: more than the guard takes of an answer."""
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
"""Of every answer."""


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """A session: what its cookie says, signed."""

    id: str
    by: str = ""
    """Who they say they are."""
    known: bool = False
    """True if they have shown the token."""
    told: str = ""
    """What the next view tells: how the last form ended."""
    until: int
    """UTC s."""


class Security:
    """The secrets of one served page; they end with its process."""

    def __init__(self, options: Options, port: int) -> None:
        self._options = options
        self._key = secrets.token_bytes(32)
        self.cookie = f"mesh_ui_{port}"  # browsers share cookies among the ports of a host
        self._hosts = {"127.0.0.1", "localhost", "::1"} if options.is_loopback else {options.host}
        self._hosts |= {name.lower() for name in options.names}
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
        """Return True if a form was sent by one of our own pages, as far as the browser says."""
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = headers.get("origin")
        return origin is None or urlsplit(origin).netloc == headers.get("host")

    # --- sessions ---------------------------------------------------------------------------------

    def fresh(self, by: str = "", *, known: bool = False) -> Visit:
        """Return a new session."""
        return Visit(
            id=secrets.token_urlsafe(16), by=by[:MOST_NAME], known=known, until=int(time.time()) + LASTS_S
        )

    def named(self, visit: Visit, by: str) -> Visit:
        """Return the same session with a person's name."""
        return msgspec.structs.replace(visit, by=by.strip()[:MOST_NAME])

    def is_token(self, said: str) -> bool:
        """Return True if this is the token; it takes the same time whatever was said."""
        token = self._options.token or ""
        return bool(token) and hmac.compare_digest(said.encode(), token.encode())

    def may_enter(self, visit: Visit, authorization: str) -> bool:
        """Return True if a visitor has shown the token, or none is asked for."""
        kind, _, said = authorization.partition(" ")
        bearer = kind.lower() == "bearer" and self.is_token(said.strip())
        return self._options.token is None or visit.known or bearer

    def csrf(self, visit: Visit) -> str:
        """Return what each form of a session has to hold."""
        return self._sign(b"form", visit.id.encode())

    def is_csrf(self, visit: Visit, said: str) -> bool:
        return hmac.compare_digest(said.encode(), self.csrf(visit).encode())

    def visit_in(self, cookies: str) -> Visit | None:
        """Return the session of a Cookie header; None if it has none of ours, or one that was made up."""
        try:
            found = SimpleCookie(cookies).get(self.cookie)
            body, _, signature = ("" if found is None else found.value).partition(".")
            if not hmac.compare_digest(signature.encode(), self._sign(b"visit", body.encode()).encode()):
                return None
            visit = msgspec.json.decode(base64.urlsafe_b64decode(body), type=Visit)
        except (CookieError, ValueError, msgspec.DecodeError):
            return None
        return visit if visit.until > time.time() else None

    def set_cookie(self, visit: Visit) -> str:
        """Return the Set-Cookie header that keeps a session."""
        body = base64.urlsafe_b64encode(msgspec.json.encode(visit)).decode()
        value = f"{body}.{self._sign(b'visit', body.encode())}"
        return f'{self.cookie}="{value}"; Path=/; Max-Age={LASTS_S}; HttpOnly; SameSite=Strict'

    def _sign(self, what: bytes, body: bytes) -> str:
        return hmac.new(self._key, what + b":" + body, hashlib.sha256).hexdigest()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
