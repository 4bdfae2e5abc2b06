"""What an MCP server answers, as a value that can be journaled and told to a model.

Structured content is the result where there is some; else the text. Of what is no text, only what it was.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from mesh.agent.tools import short
from mesh.mcp.failures import McpRefused, McpTooLarge, McpUnreadable

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

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
