"""One open connection to an MCP server: to a child process by its standard streams, or by HTTP.

The task that entered the SDK's scopes must leave them, so a connection is a task. It opens, lists the tools,
and stays until it is asked to close or the server ends. Callers only wait for answers.

If one of many HTTP requests does not get through, the SDK tears the whole connection down. So `_http` answers
such a request in place of the server. The others continue, and each caller gets its own failure.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from mesh.agent.values import short
from mesh.mcp.process import BOUNDS, streams
from mesh.mcp.results import BROKEN, DENIED, UNREACHED, McpDown, McpNotInstalled, McpUnusable
from mesh.service.logs import get_logger

if TYPE_CHECKING:
    import httpx2
    from mcp.client import Client
    from mcp_types import CallToolResult, Tool

_log = get_logger(__name__)

READ_S = 300.0
CONNECT_S = 30.0

_CODES = {401: DENIED, 403: DENIED, 407: DENIED, 429: UNREACHED, 503: UNREACHED}
"""Our codes by HTTP status, if no MCP server answered. Any other status from 500 on leaves all unknown."""

Ended = Callable[[], None]


def by_process(
    name: str, command: Sequence[str], env: Mapping[str, str], cwd: str | None, ended: Ended
) -> "Client":
    """Return a client that will start a process and speak to it.

    The process gets `env` and the variables without which nothing runs (HOME, LOGNAME, PATH, SHELL, TERM,
    USER), and nothing else of this environment. Its standard error is this process's. It ends when its
    standard input closes, and is killed if it does not.

    Raises ModuleNotFoundError.
    """
    from mcp.client.stdio import get_default_environment

    return _client(streams(name, command, get_default_environment() | dict(env), cwd), ended)


def by_http(url: str, headers: Mapping[str, str], ended: Ended) -> "Client":
    """Return a client that will speak streamable HTTP. Raises ModuleNotFoundError."""
    from mcp.client.streamable_http import streamable_http_client

    @asynccontextmanager
    async def transport() -> AsyncIterator[Any]:
        async with _http(headers) as http, streamable_http_client(url, http_client=http) as both:
            yield both

    return _client(transport(), ended)


def _client(transport: AbstractAsyncContextManager[Any], ended: Ended) -> "Client":
    from mcp.client import Client
    from mcp_types import Implementation

    @asynccontextmanager
    async def watched() -> AsyncIterator[Any]:
        async with transport as (reading, writing):
            yield _Watched(reading, ended), writing

    return Client(watched(), cache=None, client_info=Implementation(name="handoff-mesh", version="0"))


class _Watched:
    """The stream of a server's messages as the SDK reads it; the SDK leaves it when there are no more."""

    def __init__(self, stream: Any, ended: Ended) -> None:
        self._stream, self._ended = stream, ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> "_Watched":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        self._ended()
        return await self._stream.__aexit__(*error)

    def __aiter__(self) -> Any:
        return self._stream.__aiter__()


def _http(headers: Mapping[str, str]) -> "httpx2.AsyncClient":
    import httpx2

    class Http(httpx2.AsyncClient):
        async def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:
            try:
                response = await super().send(request, **how)
                if "json" in response.headers.get("content-type", ""):
                    return await _whole(response) or _error(request, BROKEN, "an answer without end")
            except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout):
                return _error(request, UNREACHED, "no connection")
            except httpx2.TransportError as broken:
                return _error(request, BROKEN, type(broken).__name__)
            status = response.status_code
            code = _CODES.get(status, BROKEN if status >= 500 else 0)
            if not code:
                return response
            await response.aclose()
            return _error(request, code, f"HTTP {status}")

    def _error(request: httpx2.Request, code: int, message: str) -> httpx2.Response:
        body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
        return httpx2.Response(503, json=body, request=request)

    timeout = httpx2.Timeout(CONNECT_S, read=READ_S)
    return Http(headers={"accept-encoding": "identity"} | dict(headers), timeout=timeout)


async def _whole(response: "httpx2.Response") -> "httpx2.Response | None":
    """Read a JSON answer; None if it is larger than a message may be, or compressed."""
    import httpx2

    body = bytearray()
    try:
        if response.headers.get("content-encoding", "identity") != "identity":
            return None
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > BOUNDS.line_bytes:
                return None
    finally:
        await response.aclose()
    return httpx2.Response(
        response.status_code, headers=response.headers, content=bytes(body), request=response.request
    )


MAX_PAGES = 100
MAX_TOOLS = 1_000
Connect = Callable[[Callable[[], None]], "Client"]
"""Makes an unconnected client, which calls its argument when the server has ended."""
_Failed = tuple[type[McpDown | McpUnusable], str]


class McpConnection:
    """A connection that is being opened, open, or ended. It belongs to the event loop it was made on.

    Args:
        name: the server's, for people.
        connect: makes the client.
        start_s: how long opening and listing may take (s).
    """

    def __init__(self, name: str, connect: Connect, start_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.over = False
        """True if nothing can be sent any more, so that a new connection has to be opened."""
        self._name, self._connect, self._start_s = name, connect, start_s
        self._client: Client | None = None
        self._listed: tuple[Tool, ...] = ()
        self._failed: _Failed = (McpDown, f"{name} is closed")
        self._opened = asyncio.Event()
        self._leave = asyncio.Event()
        self._task = asyncio.create_task(self._live(), name=f"mcp {name}")

    async def ready(self) -> "tuple[Tool, ...]":
        """Wait until it is open and return the server's tools. Raises McpDown, McpUnusable."""
        await self._opened.wait()
        if self.over:
            kind, text = self._failed
            raise kind(text)
        return self._listed

    async def call(self, tool: str, arguments: dict[str, object]) -> "CallToolResult":
        """Call a tool, by the server's name for it. Raises the errors of the SDK."""
        assert self._client is not None
        return await self._client.call_tool(tool, arguments)

    def leave(self) -> None:
        """Let it close; nothing more can be sent."""
        self.over = True
        self._leave.set()

    def leave_from_elsewhere(self) -> None:
        """Let it close, from another event loop."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.leave)

    async def close(self) -> None:
        """Close it, and wait until the server has ended if it is our child process."""
        if self.loop is not asyncio.get_running_loop():
            self.leave_from_elsewhere()
            return
        self.leave()
        await asyncio.wait((self._task,))

    async def _live(self) -> None:
        try:
            await self._stay()
        except (Exception, BaseExceptionGroup) as error:
            self._failed = self._failure(_first(error))
            if self._opened.is_set() and not self._leave.is_set():
                _log.warning("mcp_connection_lost", server=self._name, reason=self._failed[1])
        finally:
            self.over = True
            self._client = None
            self._opened.set()

    async def _stay(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(self._start_s):
                client = await stack.enter_async_context(self._connect(self._ended))
                self._listed = await _every_tool(client, self._name)
            self._client = client
            _log.info("mcp_connected", server=self._name, tools=len(self._listed))
            self._opened.set()
            try:
                await self._leave.wait()
            finally:
                self.over = True

    def _failure(self, error: BaseException) -> _Failed:
        match error:
            case ModuleNotFoundError(name=str(name)) if name.partition(".")[0] == "mcp":
                return McpNotInstalled, "MCP servers need the extra: install handoff-mesh[mcp]"
            case McpUnusable():
                return type(error), str(error)
            case FileNotFoundError() | PermissionError() | NotADirectoryError():
                return McpUnusable, f"{self._name} cannot be started: {error.strerror}"
            case TimeoutError():
                return McpDown, f"{self._name} was not ready within {self._start_s:g} s"
        from mcp.shared.exceptions import MCPError

        match error:
            case MCPError(code=code) if code == DENIED:
                return McpUnusable, f"{self._name} does not let us in: {short(error.message)}"
            case MCPError():
                return McpDown, f"{self._name} ended or refused the connection: {short(error.message)}"
        return McpDown, f"{self._name} cannot be reached: {type(error).__name__}"

    def _ended(self) -> None:
        """Note that the server sends nothing more."""
        if self._opened.is_set() and not self.over:
            _log.warning("mcp_server_ended", server=self._name)
        self.leave()


async def _every_tool(client: "Client", name: str) -> "tuple[Tool, ...]":
    found: list[Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None and len(found) <= MAX_TOOLS:
            return tuple(found)
        if len(found) > MAX_TOOLS:
            break
    raise McpUnusable(f"{name} lists more than {MAX_TOOLS} tools, or more than {MAX_PAGES} pages of them")


def _first(error: BaseException) -> BaseException:
    """Return the error that broke a connection: the SDK's scopes raise groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
