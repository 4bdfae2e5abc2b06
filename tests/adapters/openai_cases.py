"""Cases of `test_openai_agents.py`, run in a process where the name `agents` is the SDK's: all at once.

Prints what went wrong as JSON, by the case's name.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(os.environ["ROOT"])

import msgspec
import pytest

from mesh.adapters import current_turn, idempotency_key
from mesh.adapters.openai_agents import mesh_agent
from mesh.agent import Constraints, Turn
from mesh.agent._telemetry import LiveOutput
from mesh.agent.errors import EffectUnknown, ToolsUnusable
from mesh.model.loop import ModelGaveUp
from mesh.model.vendor import ModelRefused, ModelRetry
from mesh.replay.code import Replayer
from mesh.testing import MemorySteps, turn
from protocol.wire.moves import Complete
from protocol.wire.records import LiveNote
from tests.adapters import openai_move_cases
from tests.adapters.openai_kit import (
    LOOK,
    calls,
    mcp,
    raised,
    run_all,
    says,
    script,
    sdk,
    testing,
    told,
)
from tests.adapters.walk import walked


class PowerCut(BaseException):
    """The process dies here."""


# --- steps ----------------------------------------------------------------------------------------


async def what_is_recorded_is_neither_asked_nor_done_again() -> None:
    model, paid, journal = script(calls("refund", {"cents": 5}), says("Done.")), list[str](), MemorySteps()

    @sdk.function_tool
    def refund(cents: int) -> str:
        paid.append(idempotency_key())
        return f"refunded {cents}"

    made = mesh_agent("billing", sdk.Agent("x", model=model, tools=[refund]), effects={"refund": "once"})
    for _ in range(2):
        given = turn(agent="billing", steps=journal)
        move = await made(given)
        assert isinstance(move, Complete)
        assert move.answer == "Done."
        assert given.execution.report.usage.model_calls == 2
        assert given.execution.report.usage.tokens == 20
    assert len(paid) == 1
    assert paid[0]
    assert len(model.calls) == 2
    assert told(model) == ["refunded 5"]


async def a_result_is_the_same_for_the_model_when_it_is_recorded() -> None:
    def die(_: Any) -> Any:
        raise PowerCut

    model = script(calls("find", {}), testing.ModelStep.respond(die), says("Done."))

    @sdk.function_tool
    def find() -> dict[str, int]:
        return {"number": 7}

    journal, made = MemorySteps(), mesh_agent("a", sdk.Agent("x", model=model, tools=[find]))
    await raised(PowerCut, made, turn(steps=journal))
    before = told(model)
    await made(turn(steps=journal))
    assert before == told(model)
    assert len(before) == 1
    assert len(model.calls) == 3


async def the_sdk_tells_the_model_of_a_broken_read_but_not_of_a_broken_effect() -> None:
    @sdk.function_tool
    def find() -> str:
        raise KeyError("no such order")

    model = script(calls("find", {}), says("Sorry."))
    await mesh_agent("a", sdk.Agent("x", model=model, tools=[find]))(turn())
    assert "error occurred" in told(model)[0]
    again = script(calls("find", {}), says("Sorry."))
    made = mesh_agent("a", sdk.Agent("x", model=again, tools=[find]), effects={"find": "idempotent"})
    assert "find raised KeyError" in await raised(EffectUnknown, made)


async def arguments_that_do_not_fit_an_effect_go_back_to_the_model() -> None:
    @sdk.function_tool
    def refund(cents: int) -> str:
        return "refunded"

    model = script(calls("refund", {"cents": "many"}), says("Sorry."))
    existing = sdk.Agent("x", model=model, tools=[refund])
    await mesh_agent("a", existing, effects={"refund": "once"})(turn())
    assert "cents" in told(model)[0] or "refund" in told(model)[0]


async def reads_run_at_the_same_time_and_effects_in_the_order_of_their_calls() -> None:
    done, both = list[str](), asyncio.Barrier(2)

    @sdk.function_tool
    async def read(what: str) -> str:
        async with asyncio.timeout(60):
            await both.wait()
        done.append(f"read {what}")
        return what

    @sdk.function_tool
    async def write(what: str) -> str:
        done.append(f"write {what}")
        return what

    wanted = [("read", "a"), ("read", "b"), ("write", "c"), ("write", "d")]
    reply = [testing.function_call(name, {"what": what}, call_id=what) for name, what in wanted]
    journal = MemorySteps()
    existing = sdk.Agent("x", model=script(reply, says("Done.")), tools=[read, write])
    made = mesh_agent("a", existing, effects={"write": "idempotent"})
    for _ in range(2):
        await made(turn(steps=journal))
    assert sorted(done[:2]) == ["read a", "read b"]
    assert done[2:] == ["write c", "write d"]


async def tools_and_instructions_see_the_turn() -> None:
    def find(context: Any) -> str:
        return f"{context.context}: {current_turn().facts['customer']}"

    find.__annotations__["context"] = sdk.RunContextWrapper
    model = script(calls("find", {}), says("Done."))
    existing = sdk.Agent(
        "x",
        instructions=lambda _, __: f"Serve {current_turn().agent}.",
        model=model,
        tools=[sdk.function_tool(find)],
    )
    await mesh_agent("a", existing, context=lambda turn: turn.agent)(
        turn(agent="a", facts={"customer": "Ada"})
    )
    assert told(model) == ["a: Ada"]
    assert model.calls[0].system_instructions == "Serve a."


# --- MCP servers ----------------------------------------------------------------------------------

SERVER = """
import sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("papers")
@server.tool()
def read(title: str) -> str:
    with open(sys.argv[1], "a") as done:
        done.write(title)
    return f"all of {title}"
server.run("stdio")
"""


DONE = Path("what-was-read")


def what_was_read() -> str:
    return DONE.read_text()


async def an_mcp_server_is_connected_before_the_first_turn_and_its_tools_are_steps() -> None:
    params = {"command": sys.executable, "args": ["-c", SERVER, str(DONE)]}
    model = script(calls("read", {"title": "it"}), says("Read."))
    existing = sdk.Agent("x", model=model, mcp_servers=[mcp.MCPServerStdio(params=params)])
    made, journal = mesh_agent("a", existing, effects={"read": "once"}), MemorySteps()
    assert made.prepare is not None
    for _ in range(2):
        await made.prepare()
        await made(turn(steps=journal))
    assert what_was_read() == "it"
    assert "all of it" in str(told(model)[0])


# --- what a turn may do ---------------------------------------------------------------------------


async def an_effect_of_a_tool_that_does_not_exist_stops_the_agent() -> None:
    existing = sdk.Agent("x", model=script(says("Done.")), tools=[LOOK])
    said = await raised(ToolsUnusable, mesh_agent("a", existing, effects={"lok": "once"}))
    assert "names no tool: lok; there are look" in said


async def a_tool_that_the_turn_may_not_call_is_not_offered() -> None:
    model = script(says("Done."))

    @sdk.function_tool
    def refund() -> str:
        return "refunded"

    made = mesh_agent("a", sdk.Agent("x", model=model, tools=[LOOK, refund]), effects={"refund": "once"})
    await made(turn(constraints=Constraints(allowed_actions=("look",))))
    assert [tool.name for tool in model.calls[0].tools] == ["look"]


async def a_tool_that_runs_here_and_is_no_function_is_refused_at_once() -> None:
    shell = sdk.LocalShellTool(executor=lambda _: "")
    with pytest.raises(ToolsUnusable, match="cannot be journaled"):
        mesh_agent("a", sdk.Agent("x", tools=[shell]))


async def what_is_no_agent_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="object"):
        mesh_agent("a", object())


async def the_client_reads_along_but_not_twice() -> None:
    def streamed(given: Turn) -> Callable[[], str]:
        notes = list[LiveNote]()
        execution = given.execution
        execution.live = LiveOutput(
            lambda _, body: notes.append(msgspec.json.decode(body, type=LiveNote)), execution.key
        )

        def text() -> str:
            execution.live.close()
            return "".join(note.text for note in notes if note.kind == "text")

        return text

    journal = MemorySteps()
    made = mesh_agent("a", sdk.Agent("x", model=script(says("It is in Oslo."))))
    for expected in ("It is in Oslo.", ""):
        given = turn(steps=journal)
        text = streamed(given)
        await made(given)
        assert text() == expected


async def a_model_that_does_not_stream_is_asked_all_the_same() -> None:
    whole = script(says("Done."))

    class Plain(sdk.Model):  # type: ignore[misc,name-defined]
        async def get_response(self, *asked: Any, **more: Any) -> Any:
            return await whole.get_response(*asked, **more)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    move = await mesh_agent("a", sdk.Agent("x", model=Plain()))(turn())
    assert isinstance(move, Complete)


async def the_runs_own_provider_and_settings_are_used() -> None:
    model = script(says("Done."))

    class Provider(sdk.ModelProvider):  # type: ignore[misc,name-defined]
        def get_model(self, model_name: str | None) -> Any:
            assert model_name == "house-model"
            return model

    config = sdk.RunConfig(model_provider=Provider())
    given = turn()
    await mesh_agent("a", sdk.Agent("x", model="house-model"), run_config=config)(given)
    assert "house-model" in given.execution.report.usage.models


# --- replay ---------------------------------------------------------------------------------------


async def a_replay_of_the_code_comes_to_the_same_and_calls_nothing() -> None:
    paid = list[int]()

    @sdk.function_tool(needs_approval=True)
    def refund(cents: int) -> str:
        paid.append(cents)
        return "refunded"

    model = script(calls("refund", {"cents": 5}), calls("ask", {"question": "Sure?"}), says("Done."))
    existing = sdk.Agent("x", model=model, tools=[refund])
    made = mesh_agent("billing", existing, effects={"refund": "once"}, moves=["ask"])
    walk = await walked(made, replies=[True, "Yes"])
    found = await Replayer({"billing": made}, walk.recording).replay(walk.guard.bodies)
    assert [(each.round, each.result, each.why) for each in found] == [
        (round_, "same", "") for round_ in range(3)
    ]
    assert (paid, len(model.calls)) == ([5], 3)


# --- failures -------------------------------------------------------------------------------------


class StatusError(Exception):
    """As an SDK's error with an HTTP status."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


async def an_error_of_the_model_says_whether_trying_again_helps() -> None:
    for status, kind in ((400, ModelRefused), (503, ModelRetry)):
        model = script(testing.ModelStep.raise_error(StatusError(status)))
        assert f"status {status}" in await raised(kind, mesh_agent("a", sdk.Agent("x", model=model)))


async def a_throttled_model_is_asked_again_in_the_same_round() -> None:
    model = script(testing.ModelStep.raise_error(StatusError(429)), says("Done."))
    move = await mesh_agent("a", sdk.Agent("x", model=model))(turn())
    assert isinstance(move, Complete)


async def a_limit_of_the_sdks_own_ends_the_turn_for_good() -> None:
    model = script(*(calls("look", {}, number) for number in range(9)))
    made = mesh_agent("a", sdk.Agent("x", model=model, tools=[LOOK]), max_turns=3)
    assert "MaxTurnsExceeded" in await raised(ModelGaveUp, made)


async def a_guardrail_that_trips_ends_the_turn_for_good() -> None:
    @sdk.input_guardrail
    async def never(*_: Any) -> Any:
        return sdk.GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    existing = sdk.Agent("x", model=script(says("Done.")), input_guardrails=[never])
    assert "Tripwire" in await raised(ModelGaveUp, mesh_agent("a", existing))


if __name__ == "__main__":
    done = asyncio.run(run_all(sys.modules["__main__"], openai_move_cases))
    sys.stdout.write(json.dumps(done))
