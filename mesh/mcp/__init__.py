"""MCP servers as tools: import `McpServer` from `mesh.mcp`, and put one among an agent's tools.

Needs the extra `handoff-mesh[mcp]`. The SDK is imported when a connection is first opened, not before.
"""

from mesh.mcp.results import (
    McpDown,
    McpNotInstalled,
    McpRefused,
    McpTimedOut,
    McpTooLarge,
    McpUnreached,
    McpUnreadable,
    McpUnusable,
)
from mesh.mcp.server import McpServer

__all__ = [
    "McpDown",
    "McpNotInstalled",
    "McpRefused",
    "McpServer",
    "McpTimedOut",
    "McpTooLarge",
    "McpUnreached",
    "McpUnreadable",
    "McpUnusable",
]
