"""How an MCP server is reached: as a process of its own over its standard streams, or by HTTP.

The SDK tears a whole connection down when one HTTP request of many does not get through. `_http` answers
such a request in the server's place, so that the others go on and each caller learns what is known.
"""

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from mesh.mcp.failures import McpNotInstalled

if TYPE_CHECKING:
    import httpx2
    from mcp.client import Client

UNREACHED = -32_010
"""In a JSON-RPC error of ours: there is no connection to the server, and nothing was sent."""
BROKEN = -32_011
"""In a JSON-RPC error of ours: the request was sent, or part of it, and no answer came."""
DENIED = -32_012
"""In a JSON-RPC error of ours: the server does not let us in, and did nothing."""
READ_S = 300.0
CONNECT_S = 30.0

_CODES = {401: DENIED, 403: DENIED, 407: DENIED, 429: UNREACHED, 503: UNREACHED}
"""By HTTP status, where no server of MCP has answered; of the others from 500 on nothing is known."""

Ended = Callable[[], None]


def by_process(command: Sequence[str], env: Mapping[str, str], cwd: str | None, ended: Ended) -> "Client":
    """Return a client that will start a process and speak to it.

    The process gets `env` and what it takes to run at all (HOME, LOGNAME, PATH, SHELL, TERM, USER), and
    nothing else of this one's environment. Its standard error is this process's. It ends when its standard
    input closes; the SDK sees to that, and kills it if it does not.

    Raises McpNotInstalled.
    """
    try:
        from mcp.client.stdio import StdioServerParameters, stdio_client
    except ModuleNotFoundError as missing:
        raise _not_installed(missing) from missing

    program, *arguments = command
    process = StdioServerParameters(command=program, args=arguments, env=dict(env), cwd=cwd)
    return _client(stdio_client(process, errlog=sys.__stderr__ or sys.stderr), ended)


def by_http(url: str, headers: Mapping[str, str], ended: Ended) -> "Client":
    """Return a client that will speak streamable HTTP. Raises McpNotInstalled."""
    try:
        from mcp.client.streamable_http import streamable_http_client
    except ModuleNotFoundError as missing:
        raise _not_installed(missing) from missing

    @asynccontextmanager
    async def transport() -> AsyncIterator[Any]:
        async with _http(headers) as http, streamable_http_client(url, http_client=http) as streams:
            yield streams

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
    """What the SDK reads a server's messages from; it leaves it when there are no more."""

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
            except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout):
                return _error(request, UNREACHED, "no connection")
            except httpx2.TransportError as broken:
                return _error(request, BROKEN, type(broken).__name__)
            status = response.status_code
            code = _CODES.get(status, BROKEN if status >= 500 else 0)
            if not code or "json" in response.headers.get("content-type", ""):
                return response
            await response.aclose()
            return _error(request, code, f"HTTP {status}")

    def _error(request: httpx2.Request, code: int, message: str) -> httpx2.Response:
        body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
        return httpx2.Response(503, json=body, request=request)

    return Http(headers=dict(headers), timeout=httpx2.Timeout(CONNECT_S, read=READ_S))


def _not_installed(missing: ModuleNotFoundError) -> Exception:
    """Return what to raise for a module that is not there: of another one it is no fault of the extra."""
    return McpNotInstalled() if (missing.name or "").partition(".")[0] == "mcp" else missing
