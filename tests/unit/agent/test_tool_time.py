"""A tool has the time that it says, and no more."""

import asyncio
import threading

import pytest

from mesh.agent.failures import EffectUnknown
from mesh.agent.stops import InDoubt
from mesh.agent.tools import ToolRefused, ToolTimedOut, tool
from mesh.testing import MemorySteps, turn

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
    with pytest.raises(EffectUnknown):
        await turn().call(change)
    with pytest.raises(InDoubt):
        await turn(steps=MemorySteps()).call(change)


async def test_a_thread_is_not_waited_for() -> None:
    ended = threading.Event()

    @tool(timeout_s=SHORT_S)
    def wait() -> None:
        """Block."""
        ended.wait(20)

    with pytest.raises(ToolRefused):
        await turn().call(wait)
    ended.set()


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
