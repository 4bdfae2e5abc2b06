"""What a connection reads, to the last byte and never twice, and when it writes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partialmethod
from pathlib import Path

import pytest

from mesh.bus.connection import Bus, connect
from mesh.bus.nats_protocol import Incoming, NatsProtocol, encode
from mesh.local.server import EmbeddedServer
from tests.servers import until
from tests.trouble.proxy import Frame, Proxy


@contextlib.asynccontextmanager
async def through_a_proxy(directory: Path) -> AsyncIterator[tuple[EmbeddedServer, Proxy, Bus]]:
    """Connect to a server of one's own through a proxy, which can hang and break in the server's place."""
    async with (
        EmbeddedServer("", directory) as server,
        Proxy(int(server.url.rpartition(":")[2])) as proxy,
        await connect(proxy.url, name="a") as bus,
    ):
        yield server, proxy, bus


async def test_a_new_connection_that_the_server_does_not_confirm_is_not_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pongs = 0

    def confirms(frame: Frame) -> bool:
        """The first pong ends the greeting, the second confirms the subscriptions."""
        nonlocal pongs
        pongs += frame.raw == b"PONG\r\n"
        return pongs == 2

    async with (
        through_a_proxy(tmp_path) as (server, proxy, bus),
        await connect(server.url, name="b") as other,
    ):
        got: list[Incoming] = []
        await bus.subscribe("news", got.append)
        monkeypatch.setattr(NatsProtocol, "flush", partialmethod(NatsProtocol.round_trip, 0.2))
        proxy.swallow(confirms)
        proxy.cut()
        await until(lambda: proxy.connections >= 3 and bus.connected)
        for n in range(3):
            await other.publish("news", b"%d" % n)
            await other.flush()
            await bus.flush()
        assert [message.data for message in got] == [b"0", b"1", b"2"]
        assert len(proxy._writers) == 2, "one connection, with its two sides"


async def test_a_new_connection_that_breaks_at_any_step_leaves_one_that_serves_us(tmp_path: Path) -> None:
    """It says CONNECT, PING, two SUB, and the PING that waits for both."""
    async with through_a_proxy(tmp_path) as (_, proxy, bus):
        got: list[bytes] = []
        await bus.subscribe("news", lambda message: got.append(message.data))
        for step in range(1, 6):
            before = proxy.connections
            proxy.cut_after(step)
            proxy.cut()
            await until(lambda: proxy.connections == before + 2 and bus.connected)  # noqa: B023
            await bus.publish("news", b"%d" % step)
            await bus.flush()
            assert len(proxy._writers) == 2, "one connection, with its two sides"
        assert got == [b"1", b"2", b"3", b"4", b"5"]


async def test_what_comes_with_the_end_of_the_greeting_is_read_and_an_end_there_is_noticed() -> None:
    """nats-py's stream holds both before we take the connection over: the socket says nothing more."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload": 1048576}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\nMSG news 1 2\r\nhi\r\n")
        writer.close()

    got: list[bytes] = []
    wire = NatsProtocol(lambda operation, subject: None)
    wire.sinks[1] = lambda message: got.append(message.data)
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        await wire.connect(f"nats://{host}:{port}", allow_reconnect=False)
        await until(lambda: wire.is_closed)
    assert got == [b"hi"]


async def test_who_waits_alone_is_written_at_once_and_all_of_one_pass_together() -> None:
    written: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload": 1048576}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
        await reader.read()
        writer.close()

    async def ask(word: bytes) -> None:
        wire.write(encode("x", word), last=True)

    wire = NatsProtocol(lambda operation, subject: None)
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        await wire.connect(f"nats://{host}:{port}", allow_reconnect=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wire._transport, "write", written.append)
            for _ in range(5):  # nobody else is left to run
                await asyncio.sleep(0)
            await ask(b"1")
            wire.write(encode("x", b"2"))
            await ask(b"3")
            assert written == [encode("x", b"1"), encode("x", b"2") + encode("x", b"3")]
            await asyncio.gather(ask(b"4"), ask(b"5"))
            await until(lambda: len(written) > 2)
            assert written[2:] == [encode("x", b"4") + encode("x", b"5")]
        await wire.close()
