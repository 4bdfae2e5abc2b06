"""What a box holds, as an agent's tools."""

import pytest

from mesh.agent.definition import unpacked
from mesh.agent.errors import ToolsUnusable
from mesh.agent.tools import Tool


@pytest.mark.parametrize("name", ["", "look up!", "n" * 65, "é", "a\n"])
async def test_a_tool_that_no_model_could_call_is_refused_when_the_tools_are_known(name: str) -> None:
    with pytest.raises(ToolsUnusable, match=r"no model can call a tool .*1 to 64 of a-z A-Z 0-9 _ -"):
        await unpacked([Tool(name, "Do it.", None, lambda: None)])


async def test_the_longest_name_will_do() -> None:
    longest = Tool("n" * 64, "Do it.", None, lambda: None)
    assert await unpacked([longest]) == (longest,)
