"""An agent with a toolbox: it takes turns when the box is open, shows what is in it, and closes it."""

import asyncio

import msgspec
import pytest

from mesh.agent import Move, Turn
from mesh.agent import definition as toolbox_module
from mesh.agent._runtime import Runtime
from mesh.agent.definition import Agent
from mesh.agent.errors import Retry
from mesh.agent.tools import Tool, tool
from protocol.wire import subjects
from protocol.wire.records import Card
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, until


@tool(effect="once")
def pay() -> None:
    """Pay."""


class Box:
    """A box with one tool; it opens when it is let."""

    name = "things"

    def __init__(self) -> None:
        self.asked = 0
        self.openable = True
        self.open = False

    async def tools(self) -> tuple[Tool, ...]:
        self.asked += 1
        if not self.openable:
            raise Retry("not yet")
        self.open = True
        return (pay,)

    async def close(self) -> None:
        self.open = False


def agent_with(box: Box) -> Agent:
    async def handle(turn: Turn) -> Move:
        return turn.complete("done")

    return Agent("a", handle, tools=(box,))


async def test_the_card_shows_what_is_in_the_box_and_draining_closes_it(stage: Stage) -> None:
    box = Box()
    runtime = await stage.runtime(agent_with(box))
    got = await (await stage.bus("admin")).request(f"$JS.API.DIRECT.GET.CARDS.{subjects.card('a')}")
    assert msgspec.json.decode(got.data, type=Card).tools == (
        {"name": "pay", "description": "Pay.", "effect": "once"},
    )
    assert box.open
    await runtime.drain(1.0)
    assert not box.open


async def test_until_the_box_opens_no_turn_is_taken_and_the_agent_says_why(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolbox_module, "AGAIN_S", 0.01)
    box = Box()
    box.openable = False
    client = await stage.client()
    request = await client.submit("hello")
    bus = await stage.bus("a", "early")
    runtime = Runtime(bus, agent_with(box))
    running = asyncio.create_task(runtime.run())
    await until(lambda: box.asked >= 3)
    (reason,) = bus.conditions.reasons()
    assert (reason.code, reason.text) == ("tools_missing", "the tools of things are not there")
    assert not runtime.ready
    box.openable = True
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"
    assert bus.conditions.reasons() == []
    await runtime.drain(1.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
