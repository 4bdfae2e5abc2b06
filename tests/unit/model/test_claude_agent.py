"""An agent that a model drives: what it cannot be made of, and what it says of its peers."""

from pathlib import Path
from typing import Any

import pytest

from mesh.agent.toolbox import ToolsUnusable
from mesh.agent.tools import Tool, tool
from mesh.model import ClaudeAgent
from mesh.model.prompt import Instructions
from mesh.testing import turn
from tests.logs import captured_logs

WORDS = Instructions("1", "Be kind.")
SCRIPT = '[a]\nfallback = { answer = "No." }\n'


def named(name: str, description: str = "Do it.") -> Tool:
    return tool(name=name, description=description)(lambda: None)


class Box:
    """A box that holds what it is given, and remembers whether it was closed."""

    name = "things"

    def __init__(self, *tools: Tool) -> None:
        self._tools = tools
        self.closed = False

    async def tools(self) -> tuple[Tool, ...]:
        return self._tools

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("name", ["complete", "ask", "escalate", "hand_back", "transfer_to_billing"])
async def test_no_tool_stands_beside_the_move_of_its_name(name: str) -> None:
    with pytest.raises(ToolsUnusable, match=f"{name} is the name of a move"):
        ClaudeAgent("a", instructions=WORDS, tools=[named(name)])
    boxed = ClaudeAgent("a", instructions=WORDS, tools=[Box(named("fine"), named(name))])
    assert boxed.prepare is not None
    with pytest.raises(ToolsUnusable, match=f"{name} is the name of a move"):
        await boxed.prepare()


@pytest.mark.parametrize("description", ["", " \n"])
async def test_a_model_is_told_of_every_tool_what_it_does(description: str) -> None:
    silent = Tool("silent", description, None, lambda: None)
    with pytest.raises(ToolsUnusable, match="silent says nothing of what it does: give it a docstring"):
        ClaudeAgent("a", instructions=WORDS, tools=[silent])


@pytest.mark.parametrize(
    ("how", "why"),
    [
        pytest.param({"handoffs": "billing"}, "a list of agents", id="one peer as text"),
        pytest.param({"handoffs": ["Billing "]}, "not an agent's name", id="no name"),
        pytest.param({"labels": {"email": ["two words"]}}, "not a label: 'two words'", id="no label"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(how: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ClaudeAgent("a", instructions=WORDS, **how)


@pytest.mark.parametrize("text", ["", " \n"])
def test_blank_instructions_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="blank"):
        Instructions("1", text)


@pytest.mark.parametrize("version", ["", "two words", "v" * 33])
def test_instructions_have_a_version(version: str) -> None:
    with pytest.raises(ValueError, match="not a version of instructions"):
        Instructions(version, "Be kind.")


async def test_a_peer_that_is_out_of_reach_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_MODEL", "scripted")
    script = tmp_path / "rules.toml"
    script.write_text(SCRIPT)
    made = ClaudeAgent("a", instructions=WORDS, script=script, handoffs=["b", "biling"])
    with captured_logs() as logs:
        for _ in range(2):
            await made(turn(agent="a", peers=["b"]))
    assert [entry for entry in logs if entry["log_level"] == "warning"] == [
        {"event": "handoffs_out_of_reach", "log_level": "warning", "agent": "a", "names": ["biling"]}
    ]


async def test_of_peers_that_are_all_there_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_MODEL", "scripted")
    script = tmp_path / "rules.toml"
    script.write_text(SCRIPT)
    made = ClaudeAgent("a", instructions=WORDS, script=script, handoffs=["b"])
    with captured_logs() as logs:
        await made(turn(agent="a", peers=["b", "c"]))
    assert logs == []
