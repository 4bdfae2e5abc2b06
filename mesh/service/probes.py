"""What a service says of itself over HTTP: `/healthz`, `/readyz`, and what else is added.

The pages are answered on the service's own event loop. An answer from `/healthz` therefore *is* the
proof that the loop turns; a blocked one does not answer, and the probe's time-out says so. `/readyz` says
whether the service takes work; if not, 503 with the reasons. Standard library only, one request a
connection; a request that makes no sense gets a 4xx, and harms nobody.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import ClassVar, NamedTuple, Self

from mesh.errors import MeshError
from mesh.service.conditions import Reason
from mesh.service.logs import get_logger

_log = get_logger(__name__)

JSON = "application/json"
_HEAD_BYTES = 8192
_PATIENCE_S = 5.0
_MOST = 64
"""Connections at a time; the next one takes the place of the oldest, which has said nothing."""


class ProbesUnusable(MeshError):
    """The address to answer on makes no sense, or is taken."""

    code: ClassVar[str] = "health.unusable"


class Page(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    media_type: str = JSON


Show = Callable[[], Page]
"""Makes a page when it is asked for. It must not block; what it raises is a 500."""


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; an IPv6 host stands in brackets. Raises ProbesUnusable."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isdecimal() or int(port) > 65535 or (":" in bare and bare == host):
        raise ProbesUnusable(f"not HOST:PORT: {text!r} (for instance 127.0.0.1:8081)")
    return bare, int(port)


def readiness(reasons: Sequence[Reason]) -> Page:
    """Return the page that says whether a service takes work: 200 without reasons, else 503."""
    said = [{"code": each.code, "text": each.text, "since_s": each.since_s} for each in reasons]
    return Page(503 if said else 200, _json({"ready": not said, "reasons": said}))


class Probes:
    """`async with Probes("127.0.0.1:8081", reasons) as probes:` answers until it ends.

    Args:
        address: HOST:PORT; port 0 lets the system choose (`url` says which).
        reasons: why the service takes no work at the moment; none when it does.
    """

    def __init__(self, address: str, reasons: Callable[[], Sequence[Reason]]) -> None:
        self._host, self._port = parse_address(address)
        self._pages: dict[str, Show] = {
            "/healthz": lambda: Page(200, _json({"alive": True})),
            "/readyz": lambda: readiness(reasons()),
        }
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}
        """The oldest first. One that asks is answered at once, so that those which stay are silent."""

    def add(self, path: str, show: Show) -> None:
        """Show one page more."""
        self._pages[path] = show

    @property
    def url(self) -> str:
        """Where it answers, once it does."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    async def __aenter__(self) -> Self:
        """Begin to answer. Raises ProbesUnusable."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_HEAD_BYTES)
        except OSError as taken:
            raise ProbesUnusable(f"cannot listen on {self._host}:{self._port}: {taken.strerror}") from taken
        self._port = self._server.sockets[0].getsockname()[1]
        _log.info("health_listening", url=self.url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(self._open) >= _MOST:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                page, with_body = await self._answer(reader)
                writer.write(_encoded(page, with_body=with_body))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            pass  # whoever asked has gone, or never finished asking
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[Page, bool]:
        """Return the page for one request, and whether its body is wanted."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _problem(431), True
        except asyncio.IncompleteReadError:
            return _problem(400), True
        match head.partition(b"\r\n")[0].split(b" "):
            case [b"GET" | b"HEAD" as verb, target, version] if version.startswith(b"HTTP/1."):
                return self._page(target), verb == b"GET"
            case [_, _, version] if version.startswith(b"HTTP/1."):
                return _problem(405), True
        return _problem(400), True

    def _page(self, target: bytes) -> Page:
        path = target.partition(b"?")[0].decode("ascii", "replace")
        show = self._pages.get(path)
        if show is None:
            return _problem(404)
        try:
            return show()
        except Exception:
            _log.exception("health_page_failed", path=path)
            return _problem(500)


def _problem(status: int) -> Page:
    return Page(status, _json({"error": HTTPStatus(status).phrase}))


def _encoded(page: Page, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {HTTPStatus(page.status).phrase}\r\n"
        f"Content-Type: {page.media_type}\r\nContent-Length: {len(page.body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (page.body if with_body else b"")


def _json(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
