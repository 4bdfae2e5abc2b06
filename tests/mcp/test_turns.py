"""Turns that call an MCP server's tools: the rules of durable turns hold for them as for any other."""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import pytest

from mesh.agent import ToolRefused
from mesh.agent.errors import ActionNotAllowed, ApprovalNeeded, EffectUnknown, InDoubt
from mesh.mcp import McpDown
from mesh.model.loop import drive
from mesh.model.port import ToolResult
from mesh.testing import MemorySteps, turn
from protocol.wire.commands import Failure
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.handoff import Constraints
from protocol.wire.moves import Complete
from tests.certain import is_
from tests.mcp.conftest import Mount, Things, World, sharing
from tests.unit.model.doubles import TalkingModel, calls, says

FAILED = RoundOutcome(round=0, how="failed", failure=Failure(code="retry"))


def settled(doubt: InDoubt, how: Literal["done", "not_done"], reply: Any = None) -> RoundOutcome:
    return RoundOutcome(round=0, how="settled", step=doubt.step, settled=how, reply=reply)


@sharing
async def test_a_turn_that_runs_again_finds_what_it_did(things: Things) -> None:
    (server, world), steps = things, MemorySteps()
    write = await server.tool("write")
    for _ in range(2):
        assert await turn(steps=steps).call(write, text="this") == {"result": "wrote this"}
    assert world.done.count("this") == 1


@sharing
async def test_a_tools_no_is_recorded(things: Things) -> None:
    (server, _), steps = things, MemorySteps()
    fail = await server.tool("fail")
    for _ in range(2):
        with pytest.raises(ToolRefused, match="on Sundays") as caught:
            await turn(steps=steps).call(fail, why="on Sundays")
        assert caught.value.reason == "mcp.refused"
    assert steps.written == 1


@sharing
async def test_reading_tools_run_at_the_same_time(things: Things) -> None:
    meet = await things[0].tool("meet")
    own = turn(steps=MemorySteps())
    both = await asyncio.gather(
        own.call(meet, name="one", other="two"), own.call(meet, name="two", other="one")
    )
    assert [*both] == [{"result": "one"}, {"result": "two"}]


async def test_a_reading_tool_whose_server_died_is_called_again_in_the_next_round(mount: Mount) -> None:
    server, steps = mount(), MemorySteps()
    with pytest.raises(McpDown):
        await turn(steps=steps).call(await server.tool("die_reading"))
    assert steps.written == 1  # what the tool raised
    assert await turn(steps=steps, past=[FAILED]).call(await server.tool("add"), a=1) == {"result": 2}


async def test_an_effect_of_which_nothing_is_known_is_in_doubt_at_once(mount: Mount, world: World) -> None:
    server, steps = mount(), MemorySteps()
    dies = await server.tool("write_and_die")
    own = turn(steps=steps)
    with pytest.raises(InDoubt) as caught:
        await own.call(dies, text="this")
    assert (caught.value.step, caught.value.action) == ("0-0", "write_and_die")
    with pytest.raises(InDoubt):  # whatever the code makes of that, it does nothing more
        await own.call(await server.tool("write"), text="that")
    done = settled(caught.value, "done", {"result": "by hand"})
    assert await turn(steps=steps, past=[done]).call(dies, text="this") == {"result": "by hand"}
    assert world.done == ["this"]


@sharing
async def test_an_effect_that_took_too_long_is_in_doubt_too(things: Things) -> None:
    slow = await things[0].tool("write_and_hang")
    with pytest.raises(InDoubt):
        await turn(steps=MemorySteps()).call(slow, text="slowly")


async def test_an_effect_that_an_admin_calls_idempotent_is_run_again_in_the_next_round(
    mount: Mount, world: World
) -> None:
    server, steps = (
        mount(effects={"write_and_hang": "idempotent"}, timeouts={"write_and_hang": 0.2}),
        MemorySteps(),
    )
    slow = await server.tool("write_and_hang")
    with pytest.raises(EffectUnknown):
        await turn(steps=steps).call(slow, text="this")
    world.open_gate()
    assert await turn(steps=steps, past=[FAILED]).call(slow, text="this") == {"result": "wrote this"}
    assert world.done == ["this", "this"]


@sharing
async def test_an_effect_is_known_by_its_key_in_every_round(things: Things) -> None:
    (server, world), steps = things, MemorySteps()
    pay = await server.tool("pay")
    first = await turn(steps=steps).call(pay, amount=3)
    assert await turn(steps=steps, past=[FAILED]).call(pay, amount=3) == first
    assert world.done.count(f"3 {first['result']}") == 1


async def test_what_needs_approval_or_may_not_be_done_is_not_done(mount: Mount, world: World) -> None:
    write = await mount(prefix="t_", approve={"write": "human"}).tool("t_write")
    with pytest.raises(ApprovalNeeded) as caught:
        await turn(steps=MemorySteps()).call(write, text="this")
    assert caught.value.ask.question == 'agent asks for approval: t_write {"text":"this"}'
    allowed = Constraints(allowed_actions=("write",))
    with pytest.raises(ActionNotAllowed):
        await turn(constraints=allowed).call(write, text="this")
    assert world.done == []


@sharing
async def test_a_model_is_offered_the_tools_and_told_what_became_of_its_calls(things: Things) -> None:
    model = TalkingModel(
        calls(("add", {"a": 1, "b": 2}), ("add", {"a": "one"}), ("fail", {"why": "on Sundays"})),
        says("Done."),
    )
    is_(await drive(turn(), model, instructions="Be brief.", tools=await things[0].tools()), Complete)
    offered: Mapping[str, Any] = {spec.name: spec.schema for spec in model.prompts[0].tools}
    assert offered["add"]["required"] == ["a"]
    told = [each for each in model.prompts[1].transcript if isinstance(each, ToolResult)]
    assert [each.is_error for each in told] == [False, True, True]
    assert told[0].text == '{"result":3}'
    assert "$.a: 'one' is not of type 'integer'" in told[1].text
    assert "on Sundays" in told[2].text
