"""A guard leaves when it is told to, however little time it is given, and its connection stays whole."""

import asyncio
import contextlib

import pytest

from tests.guard.stage import Stage
from tests.servers import PATIENCE_S


@pytest.mark.parametrize("passes", [0, 20, 100, 400])
async def test_a_guard_without_a_grace_leaves_at_once(stage: Stage, passes: int) -> None:
    guard = await stage.guard("hasty")
    for _ in range(passes):
        await asyncio.sleep(0)  # wherever its start is by then
    bus = await stage.bus("guard", "hasty")
    async with asyncio.timeout(PATIENCE_S):
        task = stage._guards.pop(guard)
        await guard.drain(0.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await bus.flush()
        await bus.request("$JS.API.DIRECT.GET.CONF.mesh.conf.fleet")


async def test_a_wait_for_the_server_that_is_given_up_costs_no_connection(stage: Stage) -> None:
    bus = await stage.bus("guard")
    for turn in range(200):
        settling = asyncio.create_task(bus.flush())
        for _ in range(turn % 7):
            await asyncio.sleep(0)
        settling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await settling
        assert settling.cancelled(), "a cancellation is not lost"
    async with asyncio.timeout(PATIENCE_S):
        await bus.flush()
        await bus.request("$JS.API.DIRECT.GET.CONF.mesh.conf.fleet")
