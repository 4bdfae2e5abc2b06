"""A log to read: filled, one that can be cut, and a slow way to it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import msgspec

from mesh.bus.connection import Bus, connect
from mesh.bus.streams import stream_table
from mesh.testing import EmbeddedBus
from protocol.wire.subjects import evt
from tests.servers import FLEET, fresh

LARGE = 900_000


def body(n: int, padding: int = 0) -> bytes:
    return msgspec.json.encode({"n": n, "x": "x" * padding})


async def fill(admin: Bus, count: int, padding: int = 0) -> None:
    """Append events of as many requests: many are sent and the last one is awaited."""
    window = max(1, min(2000, 20_000_000 // (padding + 1)))
    for start in range(0, count, window):
        until_n = min(count, start + window) - 1
        for n in range(start, until_n):
            admin.send(evt("a", fresh()), body(n, padding))
        await admin.publish_durable(evt("a", fresh()), body(until_n, padding))


async def forgetful(admin: Bus) -> None:
    """Make the log one whose beginning can be taken away at a wish, as its age does otherwise."""
    await admin.api("STREAM.DELETE.LOG")
    await admin.api("STREAM.CREATE.LOG", {**stream_table(FLEET)["LOG"], "deny_purge": False})


@contextlib.asynccontextmanager
async def slow_link(mesh: EmbeddedBus, bytes_a_second: int) -> AsyncIterator[Bus]:
    """Give a viewer's connection over a link that brings no more than so much."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, away = await asyncio.open_connection("127.0.0.1", urlsplit(mesh.url).port, limit=1 << 16)

        async def pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter, rate: int | None) -> None:
            while data := await source.read(1 << 14):
                sink.write(data)
                await sink.drain()
                if rate is not None:
                    await asyncio.sleep(len(data) / rate)

        both = [
            asyncio.ensure_future(pipe(reader, away, None)),
            asyncio.ensure_future(pipe(there, writer, bytes_a_second)),
        ]
        try:
            with contextlib.suppress(OSError):
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            writer.close()
            away.close()

    carried = set[asyncio.Task[None]]()

    def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carried.add(asyncio.ensure_future(carry(reader, writer)))

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0, limit=1 << 16)
    port = server.sockets[0].getsockname()[1]
    try:
        async with await connect(
            f"nats://127.0.0.1:{port}", name="audit", seed=mesh.keys["audit"].seed
        ) as bus:
            yield bus
    finally:
        server.close()
        for task in carried:
            task.cancel()
        await asyncio.gather(*carried, return_exceptions=True)
