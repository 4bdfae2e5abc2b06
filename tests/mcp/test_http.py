"""The same server by HTTP: what a request comes to that does not get through, or gets no answer."""

import asyncio
from urllib.parse import urlsplit

import pytest

from mesh.agent.failures import EffectUnknown
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
