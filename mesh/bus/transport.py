"""nats-py's TCP transport, with another way to begin TLS, and what reads from it after the greeting."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from nats.aio.transport import TcpTransport
from nats.errors import ProtocolError, UnexpectedEOF

_ROOM_BYTES = 1 << 17
"""Most bytes in one read."""


class Transport(TcpTransport):
    """A transport whose stream knows that it is under TLS.

    nats-py makes the stream's protocol before the handshake. asyncio then takes it for one without TLS, and
    warns each time that a server hangs up: "returning true from eof_received() has no effect when using ssl".
    """

    async def connect_tls(
        self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """Begin TLS on the open connection. Raises ssl.SSLError, OSError, TimeoutError."""
        assert self._io_writer is not None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = _Stream(reader)
        async with asyncio.timeout(connect_timeout):
            transport = await loop.start_tls(
                self._io_writer.transport, protocol, ssl_context, server_hostname=uri
            )
        if transport is None:  # the other side hung up in the meantime
            raise ConnectionResetError
        self._io_reader = reader
        self._io_writer = asyncio.StreamWriter(transport, protocol, reader, loop)

    @property
    def certificate_until(self) -> float | None:
        """When the server's certificate expires (Unix time); None without TLS."""
        shown = None if self._io_writer is None else self._io_writer.get_extra_info("peercert")
        return None if not shown else ssl.cert_time_to_seconds(shown["notAfter"])

    def __bool__(self) -> bool:
        """Return True: nats-py would put a transport of its own in the place of an unconnected one."""
        return True


class _Stream(asyncio.StreamReaderProtocol):
    """A stream that lets the connection close once the other side has sent everything."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


class Reading(asyncio.BufferedProtocol):
    """Replaces a connection's stream reader: received bytes are dispatched at once.

    Args:
        dispatch: gets the bytes of one read. It raises ProtocolError or ValueError for invalid ones.
        stream: the reader so far; what it has read is dispatched first.
    """

    def __init__(
        self,
        dispatch: Callable[[bytes], None],
        stream: asyncio.StreamReader,
        transport: asyncio.Transport,
    ) -> None:
        self.lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """Set to the error when the connection is lost or breaks the protocol."""
        self._dispatch: Callable[[bytes], None] | None = dispatch
        self._before: Any = transport.get_protocol()
        self._room = memoryview(bytearray(_ROOM_BYTES))
        transport.set_protocol(self)
        transport.resume_reading()  # the stream may have paused it
        self._take(bytes(stream._buffer))  # type: ignore[attr-defined]  # there is no public accessor
        if stream._eof or transport.is_closing():  # type: ignore[attr-defined]  # it will not be reported again
            self._done(None)

    def end(self) -> None:
        """Stop dispatching: later bytes belong to a connection that is over."""
        self._dispatch = None

    def _take(self, data: bytes) -> None:
        if self._dispatch is None:
            return
        try:
            self._dispatch(data)
        except (ProtocolError, ValueError) as broken:
            self._done(broken if isinstance(broken, ProtocolError) else ProtocolError())

    def _done(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(error or UnexpectedEOF())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self._take(bytes(self._room[:nbytes]))

    def eof_received(self) -> None:
        self._done(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._before.connection_lost(exc)  # the stream's writer waits for this call
        self._done(exc)

    def pause_writing(self) -> None:
        self._before.pause_writing()

    def resume_writing(self) -> None:
        self._before.resume_writing()
