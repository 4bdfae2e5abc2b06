"""What an MCP server can do to the agent that mounts it: it writes what it likes, when it likes.

Each attack also runs against the SDK's own transport, where it must succeed.
"""

import asyncio
import contextlib
import logging
import re
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mesh.agent.errors import EffectUnknown
from mesh.mcp import McpDown, McpServer, McpTimedOut, McpUnusable
from mesh.mcp import link as link_module
from mesh.mcp.process import Bounds, streams
from tests.logs import captured_logs
from tests.mcp.conftest import World
from tests.mcp.test_calling import is_gone, pid_of, run
from tests.mcp.test_http import Forgetful
from tests.servers import PATIENCE_S, ROOT, until

NOTE = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"%s"}}\n'
BOUNDS = Bounds(line_bytes=256 << 10, unasked_bytes=2 << 20, bad_lines=100)
FLOODS = {
    "no newline": ("x" * 65_536, 20),
    "empty lines": ("\n" * 100, 20),
    "messages that nothing asked for": (NOTE % ("x" * 60_000), 60),
}
HTTP_PIECES = 400
Transport = Callable[[str], None]


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> Transport:
    """Choose how agents speak to servers: `ours`, within narrow bounds, or `sdk`."""

    def choose(which: str) -> None:
        logging.getLogger("mcp.client.stdio").disabled = (
            which == "sdk"
        )  # a traceback for each line, otherwise
        monkeypatch.setattr(
            link_module, "streams", _sdk if which == "sdk" else partial(streams, bounds=BOUNDS)
        )

    return choose


@asynccontextmanager
async def _sdk(
    name: str, command: Sequence[str], env: Mapping[str, str], cwd: str | None
) -> AsyncIterator[tuple[Any, Any]]:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    program, *arguments = command
    async with stdio_client(
        StdioServerParameters(command=program, args=arguments, env=dict(env), cwd=cwd)
    ) as streams:
        yield streams


def mounted(folder: Path, **how: Any) -> McpServer:
    world = World(folder)
    return McpServer(
        "things",
        command=world.command,
        cwd=ROOT,
        env=world.environment,
        start_s=PATIENCE_S,
        **how,
    )


def poured(folder: Path) -> int:
    """Return how many pieces a server got rid of."""
    noted = folder / "poured"
    return int(noted.read_text() or 0) if noted.exists() else 0


async def pours_all(folder: Path, piece: str, times: int) -> bool:
    """Let a server pour; return True if it got rid of everything, and the agent still speaks to it."""
    server = mounted(folder, timeouts={"pour": 5})
    try:
        pid = await pid_of(server)
        with contextlib.suppress(McpDown, McpTimedOut):  # its answer is a part of the line that never ended
            await run(server, "pour", piece=piece, times=times)
        if poured(folder) == times and not server.is_over:
            return True
        await until(lambda: is_gone(pid))
        assert await run(server, "add", a=1, b=2) == {"result": 3}, "the next call starts another one"
        return False
    finally:
        await server.close()


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_server_cannot_flood_its_agent(flood: str, tmp_path: Path, transport: Transport) -> None:
    """Without a newline each piece cost more than the one before, and the memory grew without end."""
    piece, times = FLOODS[flood]
    for which in ("sdk", "ours"):
        transport(which)
        (tmp_path / which).mkdir()
        assert await pours_all(tmp_path / which, piece, times) == (which == "sdk")


async def test_a_server_that_writes_without_a_newline_is_dropped_after_its_call_timed_out(
    tmp_path: Path, transport: Transport
) -> None:
    """Nobody waits for its answer any more, and still it is read."""
    transport("ours")
    server = mounted(tmp_path, timeouts={"hang_and_pour": 0.2})
    try:
        pid = await pid_of(server)
        with pytest.raises(McpTimedOut):
            await run(server, "hang_and_pour", piece="x" * 65_536, times=20)
        assert not server.is_over
        World(tmp_path).open_gate()
        await until(lambda: server.is_over and is_gone(pid))
        assert poured(tmp_path) < 20
    finally:
        await server.close()


class Endless(Forgetful):
    """A server by HTTP whose answers to calls have no end, or unpack to one that has none."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding
        self.poured = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        body = await reader.readexactly(int(length[1])) if length else b""
        if b'"tools/call"' not in body:
            again = asyncio.StreamReader()
            again.feed_data(head + body)
            again.feed_eof()
            await super().serve(again, writer)
            return
        packed = f"Content-Encoding: {self._encoding}\r\n" if self._encoding else ""
        writer.write(f"HTTP/1.1 200 OK\r\n{packed}Content-Type: application/json\r\n\r\n".encode())
        packer = zlib.compressobj(wbits=31)
        with contextlib.suppress(ConnectionError):
            for _ in range(HTTP_PIECES):
                piece = b" " * 65_536
                writer.write(packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) if packed else piece)
                await writer.drain()
                self.poured += 1
        writer.close()


@pytest.mark.parametrize("encoding", ["", "gzip"])
@pytest.mark.parametrize("bounded", [False, True])
async def test_an_answer_by_http_is_bounded(
    bounded: bool, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unbounded(response: Any) -> Any:
        await response.aread()
        taken.append(len(response.content))
        return response

    taken: list[int] = []
    if bounded:
        monkeypatch.setattr(link_module, "BOUNDS", BOUNDS)
    else:
        monkeypatch.setattr(link_module, "_whole", unbounded)
        logging.getLogger("mcp.client.streamable_http").disabled = True  # a traceback with all that came
    endless = Endless(encoding)
    async with await asyncio.start_server(endless.serve, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
        server = McpServer("things", url=url, timeouts={"do": PATIENCE_S if bounded else 5})
        with pytest.raises(EffectUnknown):
            await run(server, "do")
        await server.close()
    logging.getLogger("mcp.client.streamable_http").disabled = False
    if bounded:
        assert taken == []
        assert encoding or endless.poured < HTTP_PIECES
    else:
        assert max(taken) == HTTP_PIECES * 65_536


async def test_lines_that_are_no_messages_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK wrote a traceback of twenty lines for each."""
    server = mounted(tmp_path)
    try:
        with captured_logs() as lines:
            await run(server, "pour", piece="a line for people\n", times=200)
            assert await run(server, "add", a=1, b=2) == {"result": 3}
        assert [line["event"] for line in lines].count("mcp_line_unreadable") == 1
        assert not [line for line in lines if "exc_info" in line]
        assert not [record for record in caplog.records if record.name.startswith("mcp")]
    finally:
        await server.close()


async def test_a_server_that_fills_nothing_but_its_pipe_ends_when_it_is_closed(tmp_path: Path) -> None:
    """One that writes and never reads its input cannot keep `close` waiting."""
    server = mounted(tmp_path)
    pid = await pid_of(server)
    calling = asyncio.create_task(run(server, "pour", piece="x" * 65_536, times=100))
    await until((tmp_path / "poured").exists)
    await server.close()
    assert is_gone(pid)
    await asyncio.gather(calling, return_exceptions=True)


@pytest.mark.parametrize("name", ["", "a\x1b[31mb", "a\nb", "a\u202eb", "x" * 65])
def test_a_servers_name_is_one_printable_line(name: str) -> None:
    with pytest.raises(ValueError, match="a server's name"):
        McpServer(name, command=["true"])


async def test_what_a_server_calls_its_tools_steers_no_terminal(tmp_path: Path) -> None:
    server = mounted(tmp_path, only=["\x1b[31mnone"])
    try:
        with pytest.raises(McpUnusable) as missing:
            await server.tools()
        assert "\x1b" not in str(missing.value)
    finally:
        await server.close()
