"""Hooks on a real bus: they watch rounds as they happen, and what they raise harms nothing."""

from pathlib import Path
from typing import Any

from mesh.agent import CalledTool, Hooks, Move, Retry, Turn, agent, tool
from mesh.testing import LocalMesh
from tests.logs import captured_logs


@tool
async def look_up(name: str) -> str:
    """Look up a customer."""
    return f"{name} is gold"


async def test_rounds_are_watched_and_a_broken_hook_harms_nothing(tmp_path: Path) -> None:
    seen: list[Any] = []

    def breaks(turn: Turn, called: CalledTool) -> None:
        seen.append((called.name, called.result))
        raise ZeroDivisionError("a bug in a hook")

    def ended(turn: Turn, end: Move | Exception) -> None:
        seen.append(type(end).__name__)

    def began(turn: Turn) -> None:
        seen.append(turn.round)

    @agent(name="front", hooks=Hooks(before=began, after=ended, on_tool=breaks))
    async def front(turn: Turn) -> Move:
        found = await turn.call(look_up, name="Ada")
        if not turn.failures:
            raise Retry("once more", after_s=0.01)
        return turn.complete(found)

    with captured_logs() as logs:
        async with LocalMesh([front], tmp_path) as mesh:
            outcome = await mesh.send("Who is Ada?")
    assert outcome.answer == "Ada is gold"
    assert seen == [0, ("look_up", "Ada is gold"), "Retry", 1, "Complete"]  # the second call was recorded
    (line,) = [line for line in logs if line["event"] == "hook_failed"]
    assert (line["hook"], line["agent"], line["error"]) == ("on_tool", "front", "ZeroDivisionError")
