"""A tool has the time that it says, and no more; and a thread, whatever other tools do."""

import asyncio
import contextvars
import sys
import threading
from typing import Any

import pytest

from mesh.agent._threads import MOST, NoThread, Threads
from mesh.agent.errors import EffectUnknown, InDoubt, ToolBusy, ToolError, ToolRefused, ToolTimedOut
from mesh.agent.tools import NOT_DONE, Tool, tool
from mesh.model.loop import drive
from mesh.testing import MemorySteps, StrictModel, calls, says, turn
from protocol.wire.moves import Complete
from tests.servers import PATIENCE_S

SHORT_S = 0.01


@tool(timeout_s=SHORT_S)
async def read() -> None:
    """Never answer."""
    await asyncio.Event().wait()


@tool(effect="once", timeout_s=SHORT_S)
async def change() -> None:
    """Never answer."""
    await asyncio.Event().wait()


async def test_a_reading_tool_that_takes_too_long_is_an_outcome_and_not_waited_for_again() -> None:
    steps = MemorySteps()
    for _ in range(2):
        with pytest.raises(ToolRefused, match=r"read gave no answer within 0\.01 s") as no:
            await turn(steps=steps).call(read)
        assert no.value.reason == ToolTimedOut.code
    assert steps.written == 1


async def test_of_an_effect_that_takes_too_long_nobody_knows_what_became() -> None:
    with pytest.raises(InDoubt):
        await turn().call(change)


async def test_calls_that_do_not_end_take_no_thread_from_other_tools() -> None:
    ended = threading.Event()

    @tool(timeout_s=SHORT_S)
    def stuck() -> None:
        """Block."""
        ended.wait(60)

    @tool(timeout_s=60)
    def quick() -> int:
        """Answer."""
        return 42

    async def outcome() -> type[Exception]:
        with pytest.raises(ToolError) as no:
            await stuck.run({})
        return no.type

    try:
        outcomes = [await outcome() for _ in range(MOST + 2)]
        assert outcomes == [ToolTimedOut] * MOST + [ToolBusy] * 2
        assert await quick.run({}) == 42
    finally:
        ended.set()


async def test_an_effect_for_which_there_is_no_thread_did_not_happen() -> None:
    ended, ran = threading.Event(), []

    @tool(effect="once", timeout_s=SHORT_S)
    def change(n: int) -> None:
        """Change the world."""
        ran.append(n)
        ended.wait(60)

    try:
        for n in range(MOST):
            with pytest.raises(EffectUnknown):
                await change.run({"n": n})
        with pytest.raises(ToolRefused) as no:
            await turn(steps=MemorySteps()).call(change, n=-1)
        assert no.value.reason == ToolBusy.code
    finally:
        ended.set()
    assert ran == [*range(MOST)]


async def test_what_became_of_effects_can_be_asked_while_they_hang() -> None:
    ended = threading.Event()

    @tool(effect="reconcilable", timeout_s=SHORT_S, reconcile=lambda key: NOT_DONE)
    def change() -> None:
        """Change the world."""
        ended.wait(60)

    try:
        for _ in range(MOST):
            with pytest.raises(EffectUnknown):
                await change.run({})
        assert await change.ask("key") is NOT_DONE
    finally:
        ended.set()


async def test_a_thread_that_ends_is_there_for_the_next_call() -> None:
    threads, ended = Threads(most=1), threading.Event()
    first = await threads.begin(lambda: ended.wait(60))
    with pytest.raises(NoThread):
        await threads.begin(lambda: 1, within_s=SHORT_S)
    second = asyncio.create_task(threads.begin(lambda: 2))
    ended.set()
    assert await first
    assert await (await second) == 2


async def test_whoever_waited_for_a_thread_and_went_leaves_it_to_others() -> None:
    threads, ended = Threads(most=1), threading.Event()
    first = await threads.begin(lambda: ended.wait(60))
    gone, stays = (asyncio.create_task(threads.begin(lambda: 2)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    ended.set()
    assert await first
    assert await (await stays) == 2


async def test_a_function_in_a_thread_knows_whose_turn_it_is_in() -> None:
    whose = contextvars.ContextVar("whose", default="nobody's")

    @tool
    def look() -> str:
        """Look."""
        return whose.get()

    whose.set("mine")
    assert await look.run({}) == "mine"


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("own")])
async def test_what_a_function_raises_in_its_thread_is_raised(error: Exception) -> None:
    @tool(timeout_s=60)
    def fail() -> None:
        """Fail."""
        raise error

    with pytest.raises(type(error)) as raised:
        await fail.run({})
    assert raised.value is error


def test_a_tool_has_threads_in_every_event_loop() -> None:
    @tool
    def answer() -> int:
        """Answer."""
        return 42

    assert [asyncio.run(answer.run({})) for _ in range(2)] == [42, 42]


async def test_a_time_limit_of_the_tools_own_is_its_own_affair() -> None:
    @tool(timeout_s=60)
    async def impatient() -> None:
        """Give up."""
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await turn().call(impatient)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_tool_without_any_time_is_none(seconds: float) -> None:
    with pytest.raises(TypeError, match="some time"):
        tool(timeout_s=seconds)(lambda: None)


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
    with pytest.raises(EffectUnknown, match="pay raised RuntimeError"):
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
