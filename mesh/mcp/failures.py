"""What can go wrong with an MCP server, by what is known of the call.

    McpNotInstalled, McpUnusable   Permanent: somebody has to change something
    McpDown                        Retry: the server is not there, and no effect was asked of it
    McpRefused …                   ToolError: an outcome, which is recorded and told to the model
    EffectUnknown                  (mesh.agent.failures) an effect was asked for, and nobody answered

The texts name the server as it is mounted, never its command, URL or headers: they go on the bus.
"""

from typing import ClassVar

from mesh.agent.failures import Permanent, Retry
from mesh.agent.tools import NotBegun, ToolError


class McpUnusable(Permanent):
    """The server cannot be started, or its tools cannot be mounted as they are asked for."""

    code: ClassVar[str] = "mcp.unusable"


class McpNotInstalled(McpUnusable):
    """The SDK is missing."""

    code: ClassVar[str] = "mcp.not_installed"

    def __init__(self, message: str = "MCP servers need the extra: install handoff-mesh[mcp]") -> None:
        super().__init__(message)


class McpDown(Retry):
    """The server cannot be reached, or ended while a tool that only reads was running."""

    code: ClassVar[str] = "mcp.down"


class McpRefused(ToolError):
    """The server's no: a result that says it is an error, or an error instead of one."""

    code: ClassVar[str] = "mcp.refused"


class McpTimedOut(ToolError):
    """A tool that only reads did not answer in time."""

    code: ClassVar[str] = "mcp.timed_out"


class McpNotBegun(McpRefused, NotBegun):
    """The server's no before the tool ran: to what it was asked, not to what was done."""

    code: ClassVar[str] = "mcp.refused"


class McpUnreached(NotBegun):
    """An effect could not begin: the server is not there. Nothing was done."""

    code: ClassVar[str] = "mcp.unreached"


class McpTooLarge(ToolError):
    """The tool ran, and its result is larger than a step may be."""

    code: ClassVar[str] = "mcp.too_large"


class McpUnreadable(ToolError):
    """The tool ran, and its result is not what it should be, or not what can be recorded."""

    code: ClassVar[str] = "mcp.unreadable"
