"""What a call of an MCP tool comes to: a value that can be journaled, or an error.

Structured content is the value where there is some; else the text. Of content that is no text, the value
says only what it was. The errors, by what is known of the call:

    McpNotInstalled, McpUnusable   Permanent: somebody has to change something
    McpDown                        Retry: the server is not there, and no effect was asked of it
    McpRefused …                   ToolError: an outcome, which is recorded and told to the model
    EffectUnknown                  (mesh.agent.errors) an effect was asked for, and nobody answered

Their texts name the server as it is mounted, never its command, URL or headers: they go on the bus.
"""

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from mesh.agent.errors import NotBegun, Permanent, Retry, ToolError
from mesh.agent.tools import short

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock


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


MAX_BYTES = 256 * 1024
"""Of a result as JSON. Half of what a journal's step may hold."""
_SHOWN_CHARS = 2_000


def value_of(tool: str, result: "CallToolResult", max_bytes: int) -> Any:
    """Return a result's value: any JSON. Raises McpRefused, McpTooLarge, McpUnreadable."""
    if result.is_error:
        text = short("\n".join(map(_said, result.content)), _SHOWN_CHARS)
        raise McpRefused(f"{tool}: {text or 'it failed, and does not say why'}")
    if "structured_content" in result.model_fields_set and result.structured_content is not None:
        value = result.structured_content
    else:
        value = "\n".join(map(_said, result.content))
    try:
        size = len(msgspec.json.encode(value))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise McpUnreadable(
            f"{tool} ran, but its result cannot be recorded: {type(error).__name__}"
        ) from error
    if size > max_bytes:
        raise McpTooLarge(f"{tool} ran, but its result has {size} bytes of at most {max_bytes}: ask for less")
    return value


def _said(block: "ContentBlock") -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}, {block.mime_type}, {_bytes(block.data)} bytes: not shown]"
        case "resource_link":
            return f"[link to {block.name}: {block.uri}]"
        case "resource":
            inner = block.resource
            text = getattr(inner, "text", None)
            if text is not None:
                return str(text)
            size = _bytes(getattr(inner, "blob", ""))
            return f"[{inner.uri}, {inner.mime_type or 'of no known type'}, {size} bytes: not shown]"


def _bytes(base64: str) -> int:
    return len(base64.rstrip("=")) * 3 // 4
