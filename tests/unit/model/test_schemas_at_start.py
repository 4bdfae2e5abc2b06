"""As it starts, an agent that a model drives makes its tools' schemas, and says which of them has none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from mesh.agent.toolbox import ToolsUnusable
from mesh.agent.tools import Tool, tool
from mesh.model import ClaudeAgent
from mesh.model.prompt import Instructions
from mesh.testing import StrictModel, driven_by

if TYPE_CHECKING:
    from pathlib import Path as Nowhere
WORDS = Instructions("1", "Help.")


class Connection:
    """No type that JSON has."""


@tool
async def find(name: str) -> str:
    """Find."""
    return name


@tool
async def over(name: str, connection: Connection) -> str:
    """Find over a connection."""
    return name


@tool
async def astray(path: Nowhere) -> str:
    """Find beneath a path."""
    return str(path)


@tool
async def back(call: Callable[[], int]) -> str:
    """Find, and call back."""
    return str(call())


async def prepared(*tools: Tool | Box) -> None:
    agent = ClaudeAgent("a", instructions=WORDS, tools=tools)
    assert agent.prepare is not None
    with driven_by(StrictModel()):
        await agent.prepare()


@pytest.mark.parametrize(
    ("unusable", "why"),
    [
        pytest.param(over, "Unable to generate pydantic-core schema for <class .*Connection'>", id="a class"),
        pytest.param(astray, "name 'Nowhere' is not defined", id="a hint that leads nowhere"),
        pytest.param(back, "Cannot generate a JsonSchema for .*CallableSchema", id="a function"),
    ],
)
async def test_a_tool_that_no_model_can_be_told_of_is_named_in_one_sentence(unusable: Tool, why: str) -> None:
    said = rf"^the arguments of {unusable.name} have no JSON schema \({why}.*\): annotate them"
    with pytest.raises(ToolsUnusable, match=said) as raised:
        await prepared(find, unusable)
    assert raised.value.code == "tools.unusable"
    assert ". " not in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_the_schemas_are_made_before_the_first_turn_and_not_on_its_loop() -> None:
    where: list[bool] = []

    class Made(Tool):
        @property
        def schema(self) -> dict[str, Any]:
            where.append(threading.current_thread() is threading.main_thread())
            return {"type": "object", "properties": {}}

    await prepared(Made("look", "Look.", None, lambda: None))
    assert where == [False]


class Box:
    """A box with a tool that has no schema."""

    name = "things"

    async def tools(self) -> tuple[Tool, ...]:
        return (over,)

    async def close(self) -> None: ...


async def test_what_is_in_a_box_is_the_boxs_to_say() -> None:
    await prepared(find, Box())


async def test_an_agent_without_tools_starts() -> None:
    await prepared()
