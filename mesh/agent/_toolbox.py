"""Toolboxes: tools that are known only once somebody was asked, such as those of an MCP server.

Among an agent's tools a box stands for all that is in it. It is opened before the agent takes turns, so that
its card and its model's prompts name the same tools; and closed as the agent leaves.
"""

import asyncio
from collections.abc import Iterable
from typing import ClassVar, Protocol, runtime_checkable

from mesh.agent.errors import Permanent, Retry
from mesh.agent.tools import NAME_SYNTAX, Tool, is_tool_name, short
from mesh.service.conditions import Conditions, Kind

AGAIN_S = 5.0
DOWN = Kind("tools_missing", "tools_found", "the tools of {} are not there", lasts=True)


class ToolsUnusable(Permanent):
    """No model can be told the tools of an agent: for want of a name of their own, a schema, or words."""

    code: ClassVar[str] = "tools.unusable"


@runtime_checkable
class Toolbox(Protocol):
    """Where tools come from."""

    name: str

    async def tools(self) -> tuple[Tool, ...]:
        """Return the tools; the same as long as the process lives. Raises Retry, Permanent."""
        ...

    async def close(self) -> None:
        """Give back what was opened. Idempotent; whatever is used later opens it again."""
        ...


async def unpacked(tools: Iterable[Tool | Toolbox]) -> tuple[Tool, ...]:
    """Return the tools, those of boxes too. Raises ToolsUnusable, and what a box raises."""
    found: dict[str, Tool] = {}
    for each in tools:
        for tool in (each,) if isinstance(each, Tool) else await each.tools():
            if not is_tool_name(tool.name):
                raise ToolsUnusable(f"no model can call a tool {short(tool.name)!r}: a name is {NAME_SYNTAX}")
            if tool.name in found:
                raise ToolsUnusable(f"two tools are called {tool.name}")
            found[tool.name] = tool
    return tuple(found.values())


async def unpacked_in_time(tools: Iterable[Tool | Toolbox], conditions: Conditions) -> tuple[Tool, ...]:
    """Return the tools as `unpacked` does, and wait for boxes that cannot be opened yet."""
    boxes = tuple(tools)
    for box in boxes:
        if isinstance(box, Tool):
            continue
        while True:
            try:
                await box.tools()
            except Retry as down:
                conditions.raise_(DOWN, box.name, reason=str(down))
                await asyncio.sleep(AGAIN_S)
            else:
                conditions.clear(DOWN, box.name)
                break
    return await unpacked(boxes)


async def put_away(tools: Iterable[Tool | Toolbox]) -> None:
    """Close every box."""
    for each in tools:
        if not isinstance(each, Tool):
            await each.close()
