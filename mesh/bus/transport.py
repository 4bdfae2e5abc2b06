"""nats-py's TCP transport, with another way to begin TLS."""

import asyncio
import ssl
from typing import Any

from nats.aio.transport import TcpTransport


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

    def __bool__(self) -> bool:
        """Return True: nats-py would put a transport of its own in the place of an unconnected one."""
        return True


class _Stream(asyncio.StreamReaderProtocol):
    """A stream that lets the connection close once the other side has sent everything."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False
