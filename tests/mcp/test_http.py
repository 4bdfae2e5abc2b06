"""The same server by HTTP: what a request comes to that does not get through, or gets no answer."""

import asyncio
import json
import re
from typing import Any
from urllib.parse import urlsplit

import pytest

from mesh.agent.errors import EffectUnknown
from mesh.mcp import McpDown, McpUnreached, McpUnusable
from tests.mcp.conftest import HttpServer, Mount, World
from tests.mcp.test_calling import run
from tests.servers import until


async def test_tools_are_called_by_http_as_well(mount: Mount, by_http: str) -> None:
    server = mount(url=by_http)
    assert await run(server, "add", a=1, b=2) == {"result": 3}
    assert await run(server, "write", text="this") == {"result": "wrote this"}


async def test_where_nobody_listens_it_may_be_tried_again(mount: Mount, own_http: HttpServer) -> None:
    url = own_http.start()
    own_http.kill()
    with pytest.raises(McpDown, match="no connection"):
        await mount(url=url).tools()


async def test_a_server_that_was_killed_leaves_reading_effects_and_what_comes_later_apart(
    mount: Mount, own_http: HttpServer, world: World
) -> None:
    server = mount(url=own_http.start())
    await server.tools()
    reading = asyncio.create_task(run(server, "hang"))
    writing = asyncio.create_task(run(server, "write_and_hang", text="this"))
    await until(lambda: len(world.done) == 2)
    own_http.kill()
    read, wrote = await asyncio.gather(reading, writing, return_exceptions=True)
    assert (type(read), type(wrote)) == (McpDown, EffectUnknown)
    with pytest.raises(McpDown):
        await run(server, "add", a=1)
    with pytest.raises(McpUnreached, match="nothing was done"):
        await run(server, "write", text="that")


async def test_a_request_that_gets_no_answer_takes_no_other_one_with_it(
    mount: Mount, own_http: HttpServer, world: World
) -> None:
    url = own_http.start()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool) -> None:
        while (part := await reader.read(65536)) and not (to_server and b'"write"' in part):
            writer.write(part)
            await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass everything on, and hang up on whoever wants to write."""
        answers, requests = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        await asyncio.gather(
            pass_on(reader, requests, to_server=True), pass_on(answers, writer, to_server=False)
        )

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as listening:
        server = mount(url=f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp")
        await server.tools()
        other = asyncio.create_task(run(server, "hang"))
        await until(lambda: world.done == ["hanging"])
        with pytest.raises(EffectUnknown):
            await run(server, "write", text="this")
        world.open_gate()
        assert await other == {"result": "let through"}
        await server.close()


class Forgetful:
    """A server of an older revision, which knows its sessions, until it is told to forget them."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.begun = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"content-length: (\d+)", head)
        session = re.search(r"mcp-session-id: (\S+)", head)
        asked = json.loads(await reader.readexactly(int(length[1]))) if length else {}
        status, extra, body = self._answer(asked, session[1] if session else "")
        data = b"" if body is None else json.dumps({"jsonrpc": "2.0", "id": asked["id"]} | body).encode()
        writer.write(
            f"HTTP/1.1 {status} X\r\n{extra}Content-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
            + data
        )
        await writer.drain()
        writer.close()

    def _answer(self, asked: Any, session: str) -> tuple[int, str, dict[str, Any] | None]:
        match asked.get("method"):
            case "initialize":
                self.begun += 1
                self.sessions.add(f"s{self.begun}")
                found: dict[str, Any] = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "old", "version": "1"},
                }
                return 200, f"Mcp-Session-Id: s{self.begun}\r\n", {"result": found}
            case "server/discover":
                return 200, "", {"error": {"code": -32601, "message": "no such method"}}
            case "tools/list" | "tools/call" if session not in self.sessions:
                return 404, "", None
            case "tools/list":
                return 200, "", {"result": {"tools": [{"name": "do", "inputSchema": {"type": "object"}}]}}
            case "tools/call":
                return 200, "", {"result": {"content": [{"type": "text", "text": session}]}}
            case "notifications/initialized":
                return 202, "", None
        return 405, "", None


async def test_a_session_that_the_server_forgot_is_begun_anew(mount: Mount) -> None:
    old = Forgetful()
    async with await asyncio.start_server(old.serve, "127.0.0.1", 0) as listening:
        server = mount(url=f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp")
        assert await run(server, "do") == "s1"
        old.sessions.clear()
        with pytest.raises(McpUnreached, match="nothing was done"):
            await run(server, "do")
        assert await run(server, "do") == "s2"
        await server.close()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        pytest.param(401, McpUnusable, id="who are you"),
        pytest.param(503, McpDown, id="not now"),
        pytest.param(500, McpDown, id="broken"),
    ],
)
async def test_what_is_no_mcp_server_is_said(mount: Mount, status: int, kind: type[Exception]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(kind, match=f"HTTP {status}"):
            await mount(url=f"http://127.0.0.1:{port}/mcp").tools()
