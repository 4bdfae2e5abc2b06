"""Whether anybody may have worked on a round before, as far as the journal tells."""

import types
from typing import Any, cast

import pytest

from mesh.agent._runtime import Runtime
from mesh.agent._step_store import WINDOW
from mesh.agent.definition import Agent
from mesh.bus.consumer import Message
from mesh.testing import MemorySteps, turn

NOW = 1_000_000_000_000_000
"""UTC µs: long ago, so that no event counts as stored just now."""


async def begun(steps: MemorySteps) -> bool:
    bus: Any = types.SimpleNamespace(since_s=0.0, name="agent")
    runtime = Runtime(bus, Agent("agent", cast("Any", None)))
    runtime._steps = cast("Any", steps)
    message = cast("Message", types.SimpleNamespace(delivered=1, stored_us=NOW))
    one = turn()
    return await runtime._was_begun(message, one.request, one.execution.work)


async def test_a_round_without_any_step_is_fresh() -> None:
    assert not await begun(MemorySteps())


@pytest.mark.parametrize("place", [0, 1, WINDOW - 1])
async def test_a_step_at_any_place_that_can_be_the_first_stored_shows_that_it_was_begun(place: int) -> None:
    steps, one = MemorySteps(), turn()
    await steps.put(one.request, one.id, f"0-{place}", b"{}")
    assert await begun(steps)
