"""Results of MCP tools: a value that can be journaled, or an error.

The value is the structured content if there is any, else the text. Other content appears only by its kind and
size. There is an error for each thing that can be known of a failed call:

    McpNotInstalled, McpUnusable   Permanent: somebody has to change something
    McpDown                        Retry: the server is not there, and no effect was requested
    McpRefused …                   ToolError: an outcome, which is recorded and shown to the model
    EffectUnknown                  (mesh.agent.errors) an effect was requested, and no answer came

The texts name the server as it is mounted, never its command, URL or headers: they go on the bus.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from mesh.agent.errors import EffectUnknown, NotBegun, Permanent, Retry, ToolError
from mesh.agent.tools import Tool
from mesh.agent.values import short
from protocol.wire import codec

if TYPE_CHECKING:
    from mcp.shared.exceptions import MCPError
    from mcp_types import CallToolResult, ContentBlock


class McpUnusable(Permanent, code="mcp.unusable"):
    """The server cannot be started, or its tools cannot be mounted as asked."""


class McpNotInstalled(McpUnusable, code="mcp.not_installed"):
    """The SDK is missing."""


class McpDown(Retry, code="mcp.down"):
    """The server cannot be reached, or ended while a tool that only reads was running."""


class McpRefused(ToolError, code="mcp.refused"):
    """The server's refusal: a result that is marked as an error, or a JSON-RPC error."""


class McpNotBegun(McpRefused, NotBegun, code="mcp.refused"):
    """The server's refusal before the tool ran."""


class McpTimedOut(ToolError, code="mcp.timed_out"):
    """A tool that only reads did not answer in time."""


class McpUnreached(NotBegun, code="mcp.unreached"):
    """An effect could not begin: the server is not there. Nothing was done."""


class McpTooLarge(ToolError, code="mcp.too_large"):
    """The tool ran, and its result is larger than a step may be."""


class McpUnreadable(ToolError, code="mcp.unreadable"):
    """The tool ran, and its result does not fit its schema or cannot be recorded."""


# --- a result -------------------------------------------------------------------------------------

MAX_BYTES = 256 * 1024
"""Limit of a result as JSON: half of what a journal's step may hold."""
_SHOWN_CHARS = 2_000


def value_of(tool: str, result: "CallToolResult", max_bytes: int) -> Any:
    """Return a result's value, any JSON. Raises McpRefused, McpTooLarge, McpUnreadable."""
    if result.is_error:
        text = short("\n".join(map(_as_text, result.content)), _SHOWN_CHARS)
        raise McpRefused(f"{tool}: {text or 'it failed, and does not say why'}")
    if "structured_content" in result.model_fields_set and result.structured_content is not None:
        value = result.structured_content
    else:
        value = "\n".join(map(_as_text, result.content))
    try:
        size = len(msgspec.json.encode(value))
    except codec.UNWRITABLE as error:
        raise McpUnreadable(
            f"{tool} ran, but its result cannot be recorded: {type(error).__name__}"
        ) from error
    if size > max_bytes:
        raise McpTooLarge(f"{tool} ran, but its result has {size} bytes of at most {max_bytes}: ask for less")
    return value


def _as_text(block: "ContentBlock") -> str:
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


# --- an error instead of a result ----------------------------------------------------------------------

UNREACHED = -32_010
"""Code of a JSON-RPC error of ours: there is no connection to the server, and nothing was sent."""
BROKEN = -32_011
"""Code of a JSON-RPC error of ours: the request was sent, or part of it, and no answer came."""
DENIED = -32_012
"""Code of a JSON-RPC error of ours: the server denies us access, and did nothing."""
CONNECTION_CLOSED = -32_000
INVALID_REQUEST = -32_600
_PARSE_ERROR = -32_700
_NOT_BEGUN = frozenset(
    {
        -32_601,  # no such tool, or no such method
        -32_602,  # wrong arguments
        -32_020,  # headers that do not match the request
        -32_021,  # the server wants something that we do not offer
        -32_022,  # another version of the protocol
        -32_042,  # it wants a person to open a page first
    }
)
"""Codes with which a server refuses before it does anything."""
_UNANSWERED = frozenset({CONNECTION_CLOSED, BROKEN, _PARSE_ERROR, INVALID_REQUEST})
"""Codes that the SDK or `mesh.mcp.link` give if no answer came, or no readable one."""
_SESSION_GONE = "Session terminated"
"""The SDK's text if a server does not know our session any more, and has processed nothing."""


def meaning_of(tool: Tool, error: "MCPError") -> Exception:
    """Return the error that a JSON-RPC error in place of a result stands for."""
    name, code, text = tool.name, error.code, short(error.message)
    if code in _NOT_BEGUN:
        return McpNotBegun(f"{name}: {text}")
    gone = code == INVALID_REQUEST and error.message == _SESSION_GONE
    if code in (UNREACHED, DENIED) or gone:
        if tool.effect is not None:
            return unreached(name, text)
        return (McpUnusable if code == DENIED else McpDown)(f"the server of {name} cannot be used: {text}")
    if tool.effect is not None:
        return EffectUnknown(f"{name}: {text}")
    if code in _UNANSWERED:
        return McpDown(f"the server of {name} did not answer: {text}")
    return McpRefused(f"{name}: {text}")


def unreached(tool: str, why: str) -> McpUnreached:
    return McpUnreached(f"{tool} was not called, and nothing was done: {why}")
