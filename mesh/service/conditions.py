"""Conditions that keep a process from its work, and the HTTP probes that report them.

Each condition is logged once when it begins and once when it ends. Code that meets a failure calls `raise_`.
Code that finds the same thing working calls `clear`. A condition ends when it was cleared and not raised
again for the kind's `settle_s`, so one that comes and goes remains a single condition. It also ends when it
was not raised for `FORGET_S`.

Probes are answered on the service's own event loop. An answer from `/healthz` therefore *is* the proof that
the loop runs. A blocked loop does not answer, and the probe times out. `/readyz` reports if the service takes
work; if not, it answers 503 with the current conditions. Each connection serves one request; a malformed
request gets a 4xx, and does no harm.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple, Self

from mesh.errors import MeshError
from mesh.service.logs import get_logger

_log = get_logger(__name__)

FORGET_S = 30.0
"""A condition that was not raised for this long (s) has ended: there was no more work to clear it."""
_MOST_HELD = 10_000


class Kind(NamedTuple):
    """A kind of condition: its events in the log, its text, and when it ends."""

    begins: str
    """The event that is logged when it begins; also its code."""
    ends: str
    text: str
    """Text for people; `{}` is replaced by the subject of the condition."""
    settle_s: float = 2.0
    lasts: bool = False
    """True if only `clear` ends it, however long it is not raised."""
    blocks: bool = True
    """True if a process that has it is not ready. False: it affects some messages and not others."""


class Reason(NamedTuple):
    """Why a process is not ready."""

    code: str
    text: str
    since_s: float = 0.0


@dataclass
class _Condition:
    kind: Kind
    about: str
    began: float
    raised_at: float
    cleared_at: float | None = None
    held: set[str] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class Conditions:
    """The conditions of one process. Used on one event loop.

    Args:
        forget_s: how long after it was last raised a condition ends (s).
        fields: added to every line that is logged.
    """

    def __init__(self, *, forget_s: float = FORGET_S, **fields: Any) -> None:
        self._forget_s = forget_s
        self._fields = fields
        self.quiet = False
        """True if they are logged for debugging only, because another connection reports the same."""
        self._current: dict[tuple[str, str], _Condition] = {}
        self.raised = 0
        """How often any condition was raised."""

    def raise_(self, kind: Kind, about: str = "", *, held: str = "", **fields: Any) -> None:
        """Raise a condition. It is logged if it is new.

        Args:
            about: its subject, such as a stream; each subject may have one condition of a kind.
            held: a thing that cannot continue because of it; the line that ends it has their number.
            fields: added to the line that begins it.
        """
        self.raised += 1
        now = time.monotonic()
        condition = self._current.get((kind.begins, about))
        if condition is None:
            condition = self._current[kind.begins, about] = _Condition(kind, about, now, now)
            named = {"about": about} if about else {}
            self._write_log(_log.warning, kind.begins, **named, **fields)
        condition.raised_at, condition.cleared_at = now, None
        if held:
            self.hold(kind, about, held=held)
        if condition.timer is None and not kind.lasts:
            self._check_in(condition, self._forget_s)

    def hold(self, kind: Kind, about: str = "", *, held: str) -> None:
        """Count one more thing that a condition delays, if the condition is current."""
        condition = self._current.get((kind.begins, about))
        if condition is not None and len(condition.held) < _MOST_HELD:
            condition.held.add(held)

    def clear(self, kind: Kind, about: str = "") -> None:
        """Clear a condition, if it is current."""
        if not self._current:
            return
        condition = self._current.get((kind.begins, about))
        if condition is not None and condition.cleared_at is None:
            condition.cleared_at = time.monotonic()
            self._check_in(condition, kind.settle_s)

    def __bool__(self) -> bool:
        """Return True if there is any condition."""
        return bool(self._current)

    def reasons(self) -> list[Reason]:
        """Return why the process is not ready: the blocking conditions that were not cleared."""
        now = time.monotonic()
        return [
            Reason(each.kind.begins, each.kind.text.format(each.about), round(now - each.began, 3))
            for each in self._current.values()
            if each.cleared_at is None and each.kind.blocks
        ]

    def close(self) -> None:
        """Forget every condition and log nothing: the process ends."""
        for condition in self._current.values():
            if condition.timer is not None:
                condition.timer.cancel()
        self._current.clear()

    def _check_in(self, condition: _Condition, delay_s: float) -> None:
        if condition.timer is not None:
            condition.timer.cancel()
        loop = asyncio.get_running_loop()
        condition.timer = loop.call_later(delay_s, self._check, condition)

    def _check(self, condition: _Condition) -> None:
        """End a condition that was left alone for long enough; otherwise check again when it may be so."""
        condition.timer = None
        quiet_s = time.monotonic() - (condition.cleared_at or condition.raised_at)
        wait_s = self._forget_s if condition.cleared_at is None else condition.kind.settle_s
        if quiet_s < wait_s:
            if condition.cleared_at is not None or not condition.kind.lasts:
                self._check_in(condition, wait_s - quiet_s)
            return
        del self._current[condition.kind.begins, condition.about]
        named: dict[str, Any] = {"about": condition.about} if condition.about else {}
        if condition.held:
            named["held_up"] = len(condition.held)
        lasted_s = round((condition.cleared_at or condition.raised_at) - condition.began, 3)
        self._write_log(_log.info, condition.kind.ends, **named, lasted_s=lasted_s)

    def _write_log(self, log: Callable[..., None], event: str, **fields: Any) -> None:
        (_log.debug if self.quiet else log)(event, **self._fields, **fields)


# --- probes ---------------------------------------------------------------------------------------

JSON = "application/json"
_HEAD_BYTES = 8192
_PATIENCE_S = 5.0
_MOST = 64
"""Connections at a time; the next one replaces the oldest, which has sent nothing."""


class ProbesUnusable(MeshError, code="health.unusable"):
    """The address to answer on is invalid, or is taken."""


class ProbeAnswer(NamedTuple):
    """A probe's answer over HTTP."""

    status: int
    body: bytes
    media_type: str = JSON


Show = Callable[[], ProbeAnswer]
"""Makes a page on request. It must not block; an error that it raises is a 500."""


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; an IPv6 host is in brackets. Raises ProbesUnusable."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isdecimal() or int(port) > 65535 or (":" in bare and bare == host):
        raise ProbesUnusable(f"not HOST:PORT: {text!r} (for instance 127.0.0.1:8081)")
    return bare, int(port)


def readiness(reasons: Sequence[Reason]) -> ProbeAnswer:
    """Return the page of a service's readiness: 200 without reasons, else 503 with them."""
    shown = [{"code": each.code, "text": each.text, "since_s": each.since_s} for each in reasons]
    return ProbeAnswer(503 if shown else 200, _json({"ready": not shown, "reasons": shown}))


class Probes:
    """`async with Probes("127.0.0.1:8081", reasons) as probes:` answers until it ends.

    Args:
        address: HOST:PORT; port 0 lets the system choose (see `url`).
        reasons: why the service takes no work at the moment; empty if it does.
    """

    def __init__(self, address: str, reasons: Callable[[], Sequence[Reason]]) -> None:
        self._host, self._port = parse_address(address)
        self._pages: dict[str, Show] = {
            "/healthz": lambda: ProbeAnswer(200, _json({"alive": True})),
            "/readyz": lambda: readiness(reasons()),
        }
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}
        """Oldest first. A request is answered at once, so connections that stay open are silent."""

    def add(self, path: str, show: Show) -> None:
        """Add a page."""
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

    async def __aexit__(self, *error: object) -> None:
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
            pass  # the client has gone, or never finished its request
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[ProbeAnswer, bool]:
        """Return the page for one request, and True if its body is wanted."""
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

    def _page(self, target: bytes) -> ProbeAnswer:
        path = target.partition(b"?")[0].decode("ascii", "replace")
        show = self._pages.get(path)
        if show is None:
            return _problem(404)
        try:
            return show()
        except Exception:
            _log.exception("health_page_failed", path=path)
            return _problem(500)


def _problem(status: int) -> ProbeAnswer:
    return ProbeAnswer(status, _json({"error": HTTPStatus(status).phrase}))


def _encoded(page: ProbeAnswer, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {HTTPStatus(page.status).phrase}\r\n"
        f"Content-Type: {page.media_type}\r\nContent-Length: {len(page.body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (page.body if with_body else b"")


def _json(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
