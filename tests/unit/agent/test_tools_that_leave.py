"""A tool that would end the process, or waits for what somebody cancelled, is a tool that broke."""

import asyncio
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from mesh.agent.errors import EffectUnknown, InDoubt, ToolRefused
from mesh.agent.tools import NOT_DONE, Tool, tool
from mesh.model.loop import drive
from mesh.testing import MemorySteps, StrictModel, calls, says, turn
from mesh.testing.harness import turn_of
from protocol.wire.commands import Complete, Failure
from protocol.wire.events import RoundOutcome
from tests.servers import PATIENCE_S

FAILED = RoundOutcome(round=0, how="failed", failure=Failure(code="effect_unknown"))


def leave() -> None:
    """Leave."""
    sys.exit("wrong arguments")


async def leave_async() -> None:
    """Leave."""
    sys.exit(2)


async def lose() -> None:
    """Wait for what others share, which somebody has cancelled."""
    shared = asyncio.ensure_future(asyncio.Event().wait())
    shared.cancel()
    await shared


def lose_in_a_thread() -> None:
    """The same in a thread, with a loop of its own."""
    asyncio.run(lose())


BREAKING = [
    pytest.param(leave, id="exit in a thread"),
    pytest.param(leave_async, id="exit in a coroutine"),
    pytest.param(lose, id="cancelled"),
    pytest.param(lose_in_a_thread, id="cancelled in a thread"),
]


@pytest.mark.parametrize("breaks", BREAKING)
async def test_of_one_that_reads_the_model_is_told_that_it_broke(breaks: Any) -> None:
    reads = tool(name="look", description="Look.")(breaks)
    with StrictModel(calls(("look", {})), says("It broke.")) as model:
        move = await drive(turn(steps=MemorySteps()), model, instructions="", tools=(reads,))
    assert move == Complete(answer="It broke.")
    (told,) = (each for each in model.prompts[-1].transcript if getattr(each, "is_error", False))
    assert told.text.endswith("look broke: RuntimeError")


@pytest.mark.parametrize("breaks", BREAKING)
async def test_of_an_effect_nobody_knows_how_far_it_came(breaks: Any) -> None:
    with pytest.raises(EffectUnknown, match="pay broke: RuntimeError"):
        await turn(steps=MemorySteps()).call(tool(effect="idempotent", name="pay")(breaks))
    with pytest.raises(InDoubt):
        await turn(steps=MemorySteps()).call(tool(effect="once", name="pay")(breaks))


def reconciled_by(reconcile: Any) -> Tool:
    async def pay() -> None:
        raise ConnectionError("it broke off")

    return tool(effect="reconcilable", reconcile=reconcile)(pay)


@pytest.mark.parametrize("breaks", BREAKING)
async def test_so_it_is_with_the_function_that_is_asked_what_became_of_one(breaks: Any) -> None:
    def by_key(key: str) -> Any:
        return breaks()

    async def by_key_async(key: str) -> Any:
        return await breaks()

    pay = reconciled_by(by_key_async if asyncio.iscoroutinefunction(breaks) else by_key)
    with pytest.raises(RuntimeError, match=r"pay (wanted to end the process|waited for what was cancelled)"):
        await pay.ask("key")


async def begun(running: "asyncio.Task[Any]", at_it: asyncio.Event) -> None:
    """Wait until a tool is at it, and cancel whoever called it."""
    await asyncio.wait_for(at_it.wait(), PATIENCE_S)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("effect", [None, "idempotent", "once"])
async def test_a_turn_that_is_cancelled_itself_ends(effect: Any) -> None:
    at_it = asyncio.Event()

    async def wait() -> None:
        """Wait."""
        at_it.set()
        await asyncio.Event().wait()

    steps = MemorySteps()
    called = turn(steps=steps).call(tool(effect=effect)(wait))
    await begun(asyncio.ensure_future(called), at_it)
    assert steps.written == (0 if effect is None else 1), "an intent, and nothing of its end"


async def test_so_does_one_whose_reconcile_is_asked() -> None:
    at_it = asyncio.Event()

    async def wait(key: str) -> Any:
        at_it.set()
        await asyncio.Event().wait()

    await begun(asyncio.ensure_future(reconciled_by(wait).ask("key")), at_it)


async def test_so_does_one_whose_model_called_several_tools_at_once() -> None:
    at_it = asyncio.Event()

    @tool
    async def wait(n: int) -> None:
        """Wait."""
        at_it.set()
        await asyncio.Event().wait()

    model = StrictModel(calls(("wait", {"n": 1}), ("wait", {"n": 2})))
    driven = drive(turn(steps=MemorySteps()), model, instructions="", tools=(wait,))
    await begun(asyncio.ensure_future(driven), at_it)


async def test_a_tool_that_cancels_what_it_began_itself_goes_on() -> None:
    @tool
    async def look() -> str:
        """Look, and give up on a part of it."""
        part = asyncio.ensure_future(asyncio.Event().wait())
        part.cancel()
        return "seen" if await asyncio.gather(part, return_exceptions=True) else ""

    assert await turn().call(look) == "seen"


async def test_what_became_of_an_effect_is_asked_again_in_the_next_round() -> None:
    asked: list[str] = []

    def reconcile(key: str) -> Any:
        asked.append(key)
        return leave() if len(asked) == 1 else NOT_DONE

    paid: list[int] = []

    @tool(effect="reconcilable", reconcile=reconcile)
    async def pay() -> str:
        """Pay."""
        paid.append(1)
        if len(paid) == 1:
            raise ConnectionError("it broke off")
        return "paid"

    def given(steps: MemorySteps, *past: RoundOutcome) -> Any:
        made = turn(steps=steps, past=past)
        fleet = replace(made.execution.fleet, lease_s=0.0)
        return turn_of(made.request, made.execution.work, fleet, steps)

    steps = MemorySteps()
    with pytest.raises(EffectUnknown):
        await given(steps).call(pay)
    with pytest.raises(EffectUnknown, match="pay broke: RuntimeError"):
        await given(steps, FAILED).call(pay)
    assert await given(steps, FAILED, replace(FAILED, round=1)).call(pay) == "paid"
    assert len(set(asked)) == 1


async def test_a_tool_that_is_out_of_time_has_timed_out_and_not_broken() -> None:
    @tool(timeout_s=0.01)
    async def wait() -> None:
        """Wait."""
        await asyncio.Event().wait()

    with pytest.raises(ToolRefused, match="no answer within"):
        await turn().call(wait)
