"""One open connection to an MCP server.

The SDK's scopes have to be left by the task that entered them, so a connection is a task: it opens, lists
the tools, and stays until it is told to close or the server ends. Whoever calls only waits for answers.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from mesh.agent.tools import short
from mesh.mcp.failures import McpDown, McpUnusable
from mesh.mcp.wires import DENIED

if TYPE_CHECKING:
    from mcp.client import Client
    from mcp_types import CallToolResult, Tool

_log = structlog.get_logger(__name__)

MAX_PAGES = 100
MAX_TOOLS = 1_000
Connect = Callable[[Callable[[], None]], "Client"]
"""Makes a client that is not connected yet; it is to call what it is given when the server has ended."""
_Failed = tuple[type[McpDown | McpUnusable], str]


class Link:
    """A connection that is being opened, open, or over. Belongs to the event loop that it was made on.

    Args:
        name: the server's, for people.
        connect: makes the client.
        start_s: how long opening and listing may take.
    """

    def __init__(self, name: str, connect: Connect, start_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.over = False
        """Whether nothing can be sent any more; another one has to be opened."""
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
        """Call a tool, by the server's name for it. Raises what the SDK raises."""
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
        """Close it and wait until the server, if it is a process of ours, has ended."""
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
        from mcp.shared.exceptions import MCPError

        match error:
            case McpUnusable():
                return type(error), str(error)
            case FileNotFoundError() | PermissionError() | NotADirectoryError():
                return McpUnusable, f"{self._name} cannot be started: {error.strerror}"
            case TimeoutError():
                return McpDown, f"{self._name} was not ready within {self._start_s:g} s"
            case MCPError(code=code) if code == DENIED:
                return McpUnusable, f"{self._name} does not let us in: {short(error.message)}"
            case MCPError():
                return McpDown, f"{self._name} ended or refused the connection: {short(error.message)}"
        return McpDown, f"{self._name} cannot be reached: {type(error).__name__}"

    def _ended(self) -> None:
        """Learn that the server says nothing more."""
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
    """Return what broke a connection: scopes of the SDK raise groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
