"""How long a connection may keep a server waiting, and how many there may be.

uvicorn waits for ever for the rest of a request, and for a client that reads nothing. Some hundred such
connections, which cost their owner nothing, would keep everyone else out.
"""

import asyncio
from typing import Any, Protocol

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class ConnectionLimits(Protocol):
    """Limits on what the clients of one server may use of it."""

    @property
    def head_s(self) -> float:
        """For a complete request line and headers."""

    @property
    def body_s(self) -> float:
        """For a body, once its headers have arrived."""

    @property
    def stalled_s(self) -> float:
        """For a client that does not read an answer."""

    @property
    def waiting(self) -> int:
        """Connections without a complete request. If one more comes, the oldest is cut."""

    @property
    def connections(self) -> int:
        """Connections in all; requests on others are answered with 503."""


class Timed(H11Protocol):
    """A connection with a time limit for each part of a request.

    `waiting` is shared by the connections of one server (`timed`).
    """

    waiting: "dict[Timed, None]"
    limits: ConnectionLimits
    _part: Any = None
    _late: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_rest()
        if len(self.waiting) > self.limits.waiting:
            next(iter(self.waiting))._cut()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit(None)
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.limits.stalled_s, self._cut)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.loop.call_later(
            self.limits.stalled_s, self._cut
        )  # it closes once everything is read, which may be never

    def _await_rest(self) -> None:
        """Limit the time for the part of a request that is missing now."""
        part = self.conn.their_state
        if part is not self._part:
            self._limit({h11.IDLE: self.limits.head_s, h11.SEND_BODY: self.limits.body_s}.get(part))
            self._part = part

    def _limit(self, seconds: float | None) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = None if seconds is None else self.loop.call_later(seconds, self._cut)
        self.waiting.pop(self, None)
        if seconds is not None:
            self.waiting[self] = None

    def _cut(self) -> None:
        self._limit(None)
        self.transport.abort()


def timed(limits: ConnectionLimits) -> type[Timed]:
    """Return the protocol of one server's connections."""
    return type("Timed", (Timed,), {"waiting": {}, "limits": limits})
