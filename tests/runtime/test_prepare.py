"""What an agent loads for its turns is loaded before the first of them; a failure there stops nobody.

But for tools that nobody could use: then no turn could do anything, and the agent ends.
"""

import asyncio
from pathlib import Path

import pytest

from mesh.agent._runtime import Runtime
from mesh.agent.definition import Agent
from mesh.agent.errors import ToolsUnusable
from mesh.agent.turn import Turn
from mesh.cli.exits import Exit
from protocol.wire.moves import Move
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, until
from tests.system.office import Office

OPAQUE = """
from mesh.agent import tool
from mesh.model import ClaudeAgent
from mesh.model.prompt import Instructions


class Connection: ...


@tool
async def find(over: Connection) -> str:
    \"\"\"Find.\"\"\"
    return ""


a = ClaudeAgent("a", instructions=Instructions("1", "Help."), tools=[find])
"""


async def answers(turn: Turn) -> Move:
    return turn.complete("done")


async def test_no_turn_is_taken_before_what_it_needs_is_loaded(stage: Stage) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def load() -> None:
        begun.set()
        await go_on.wait()

    client = await stage.client()
    request = await client.submit("hello")
    await stage.reaches(request, "request.opened")
    runtime = Runtime(await stage.bus("a"), Agent("a", answers, prepare=load))
    running = asyncio.create_task(runtime.run())
    await asyncio.wait_for(begun.wait(), PATIENCE_S)
    assert not runtime.ready
    assert await stage.inbox_left("a") == 1
    go_on.set()
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"
    assert runtime.ready
    await runtime.drain(1.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_cannot_be_loaded_is_left_to_the_first_turn_to_say(stage: Stage) -> None:
    tried: list[bool] = []

    async def load() -> None:
        tried.append(True)
        raise RuntimeError("no such thing")

    runtime = await stage.runtime(Agent("a", answers, prepare=load))
    client = await stage.client()
    assert (await client.wait(await client.submit("hello"), timeout_s=PATIENCE_S)).answer == "done"
    assert tried == [True]
    await until(lambda: runtime.ready)


async def test_with_tools_that_nobody_could_use_it_takes_no_turn_and_ends(stage: Stage) -> None:
    async def load() -> None:
        raise ToolsUnusable("the arguments of find have no JSON schema")

    client = await stage.client()
    await stage.reaches(await client.submit("hello"), "request.opened")
    runtime = Runtime(await stage.bus("a"), Agent("a", answers, prepare=load))
    with pytest.raises(ToolsUnusable, match="of find have no JSON schema"):
        await asyncio.wait_for(runtime.run(), PATIENCE_S)
    assert not runtime.ready
    assert await stage.inbox_left("a") == 1


async def test_its_process_says_so_in_one_line_and_ends(stage: Stage, tmp_path: Path) -> None:
    office = Office(stage, tmp_path)
    (tmp_path / "desk.py").write_text(OPAQUE)
    done = await office.process("agent", "run", "desk:a", who="a")
    assert done.status == Exit.FAILED, done
    (line,) = (line for line in done.err.splitlines() if line.startswith("mesh: "))
    assert line.startswith("mesh: the arguments of find have no JSON schema (")
    assert line.endswith("): annotate them with what JSON has [tools.unusable]")
    assert "Traceback" not in done.err
    assert "agent_ready" not in done.err
