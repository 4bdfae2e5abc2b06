"""Closing a connection that is about to come back, or that breaks as it is closed."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from nats.aio.transport import TcpTransport

from mesh.bus.connection import Bus, connect
from mesh.local.server import EmbeddedServer
from tests.servers import until


async def plain(server: EmbeddedServer) -> Bus:
    return await connect(server.url, name="a")


async def test_closing_ends_an_attempt_to_reconnect_that_fails_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Python 3.11 `asyncio.wait_for` loses a cancellation that comes with what it waits for."""
    trying = asyncio.Event()

    async def refused_as_it_is_cancelled(*_: object, **__: object) -> None:
        trying.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(600)  # until it is cancelled
        raise ConnectionRefusedError

    async with EmbeddedServer("", tmp_path) as server, await plain(server) as bus:
        monkeypatch.setattr(TcpTransport, "connect", refused_as_it_is_cancelled)
        await server.kill()
        await trying.wait()
        reconnecting = bus._wire._reconnection_task
        assert reconnecting is not None
        await bus.close()
        await until(reconnecting.done)


async def test_a_socket_that_opens_after_its_connection_was_closed_is_closed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nats-py waits 0.1 s for the attempt that it cancels; on a busy machine an attempt ends later."""
    trying, closed = asyncio.Event(), asyncio.Event()
    opened: list[Any] = []
    usual = TcpTransport.connect

    async def opens_late(transport: TcpTransport, *values: Any, **named: Any) -> None:
        if transport is not wire._transport:  # the server's own look at itself
            await usual(transport, *values, **named)
            return
        trying.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(600)  # until it is cancelled
        await closed.wait()
        await usual(transport, *values, **named)
        opened.append(transport)

    async with EmbeddedServer("", tmp_path) as server, await plain(server) as bus:
        wire: Any = bus._wire
        monkeypatch.setattr(TcpTransport, "connect", opens_late)
        await server.kill()
        await trying.wait()
        reconnecting = wire._reconnection_task
        await server.start()
        await bus.close()
        closed.set()
        await until(reconnecting.done)
        assert [each._io_writer.transport.is_closing() for each in opened] == [True]


async def test_a_connection_that_breaks_as_the_rest_is_sent_is_closed_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a server is killed, and the connection closed before its loss is noticed."""

    async def lost(_: TcpTransport) -> None:
        raise ConnectionResetError("Connection lost")

    async with EmbeddedServer("", tmp_path) as server, await plain(server) as bus:
        monkeypatch.setattr(TcpTransport, "drain", lost)
        await bus._wire._send_command(b"PONG\r\n")  # the answer to a ping that came with the end
        await bus.close()
        assert not bus.connected


async def test_a_connection_is_closed_to_the_end_if_its_caller_is_cancelled_meanwhile(tmp_path: Path) -> None:
    async with EmbeddedServer("", tmp_path) as server, await plain(server) as bus:
        wire: Any = bus._wire
        closing = asyncio.create_task(bus.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await bus.close()
        assert wire._transport._io_writer.get_extra_info("socket").fileno() == -1
