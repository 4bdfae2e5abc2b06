"""Connecting that is broken off: nothing of it stays open."""

import asyncio

import pytest

from mesh.bus.connection import connect
from mesh.errors import Denied, Unreachable
from mesh.testing import EmbeddedBus
from tests.servers import PATIENCE_S, until

GREETING = b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"headers":true}\r\n'


@pytest.mark.parametrize("greets", [b"", GREETING], ids=["silent", "greeted"])
async def test_a_connection_is_closed_if_its_caller_goes_while_it_is_made(greets: bytes) -> None:
    there, gone = asyncio.Event(), asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greets)
        if greets:
            await reader.readuntil(b"PING\r\n")
        there.set()
        await reader.read()
        gone.set()
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connecting = asyncio.create_task(connect(f"nats://127.0.0.1:{port}", name="a", timeout_s=PATIENCE_S))
        await asyncio.wait_for(there.wait(), PATIENCE_S)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await asyncio.wait_for(gone.wait(), 10.0)


async def test_one_that_ends_before_it_is_confirmed_is_not_made_again_behind_the_callers_back() -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING)
        await reader.readuntil(b"PING\r\n")
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        before = asyncio.all_tasks()
        with pytest.raises(Unreachable):
            await connect(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", name="a")
        assert not [task for task in asyncio.all_tasks() - before if "Client." in repr(task)]


async def test_one_that_is_refused_its_inbox_is_closed(furnished: EmbeddedBus) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(Denied):
        await connect(furnished.url, name="b", seed=furnished.keys["a"].seed)
    await until(lambda: asyncio.all_tasks() == before)


async def test_one_that_is_made_is_not_touched(furnished: EmbeddedBus) -> None:
    async with furnished.connected_as("c1") as bus:
        assert bus.connected
