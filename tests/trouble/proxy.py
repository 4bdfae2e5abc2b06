"""A wire that can be cut: a TCP proxy on loopback between one service and the server.

It reads the NATS protocol only as far as where a message begins and ends, so that it can swallow single
ones: a lost acknowledgement is one that the server sent and nobody got.
"""

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Literal, NamedTuple, Self

from tests.certain import known
from tests.servers import until

Towards = Literal["server", "service"]
_WITH_BODY = (b"PUB", b"HPUB", b"MSG", b"HMSG")


class Frame(NamedTuple):
    """One protocol line with its body."""

    towards: Towards
    subject: str
    """Of a message; empty for anything else."""
    reply: str
    raw: bytes


class Proxy:
    """`async with Proxy(port) as proxy:` then connect to `proxy.url` instead of the server's."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._half_open = 0
        """Connections of which the far end is not there yet."""
        self._flows = asyncio.Event()
        self._flows.set()
        self._unwanted: list[Callable[[Frame], bool]] = []
        self.swallowed: list[Frame] = []
        self.connections = 0
        """How many were ever made."""
        self._countdown = 0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{known(self._server).sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Break every connection; new ones are let through."""
        for writer in self._writers:
            writer.transport.abort()

    def cut_after(self, frames: int) -> None:
        """Break every connection when the service has said so much more."""
        self._countdown = frames

    def stall(self) -> None:
        """Let nothing through in either direction until `flow`; connections stand."""
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    def swallow(self, unwanted: Callable[[Frame], bool]) -> None:
        """Drop the next frame for which `unwanted` is true, and that one alone."""
        self._unwanted.append(unwanted)

    def lose_answer(self, to: Callable[[Frame], bool]) -> None:
        """Let the next message through for which `to` is true, and drop the answer to it."""
        asked: list[str] = []

        def unwanted(frame: Frame) -> bool:
            if not asked and frame.towards == "server" and frame.reply and to(frame):
                asked.append(frame.reply)
            return frame.towards == "service" and frame.subject in asked

        self.swallow(unwanted)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        known(self._server).close()
        self.flow()
        await until(lambda: not self._half_open)  # else its far end would open after the cut
        self.cut()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._half_open += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        finally:
            self._half_open -= 1
        pair = {writer, far_writer}
        self._writers |= pair
        for source, sink, towards in ((reader, far_writer, "server"), (far_reader, writer, "service")):
            pump = asyncio.create_task(self._pump(source, sink, towards))  # type: ignore[arg-type]
            self._pumps.add(pump)
            pump.add_done_callback(lambda done: self._over(done, pair))

    def _over(self, pump: "asyncio.Task[None]", pair: set[asyncio.StreamWriter]) -> None:
        """End both directions as soon as one has ended."""
        self._pumps.discard(pump)
        self._writers -= pair
        for writer in pair:
            writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, towards: Towards) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while line := await source.readline():
                frame = Frame(towards, *await _whole(line, source))
                await self._flows.wait()
                self._count(frame)
                if not self._is_unwanted(frame):
                    sink.write(frame.raw)
                    await sink.drain()

    def _count(self, frame: Frame) -> None:
        if self._countdown and frame.towards == "server":
            self._countdown -= 1
            if not self._countdown:
                self.cut()

    def _is_unwanted(self, frame: Frame) -> bool:
        for unwanted in self._unwanted:
            if unwanted(frame):
                self._unwanted.remove(unwanted)
                self.swallowed.append(frame)
                return True
        return False


async def _whole(line: bytes, source: asyncio.StreamReader) -> tuple[str, str, bytes]:
    """Return a frame's subject, its reply subject, and all of its bytes."""
    words = line.split()
    verb = words[0].upper() if words else b""
    if verb not in _WITH_BODY:
        return "", "", line
    body = await source.readexactly(int(words[-1]) + 2)
    rest = words[2:-2] if verb.startswith(b"H") else words[2:-1]
    reply = rest[-1] if len(rest) > verb.endswith(b"MSG") else b""  # after a subscription's number
    return words[1].decode(), reply.decode(), line + body
