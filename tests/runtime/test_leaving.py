"""Leaving: an instance that is told to go is gone, whatever the bus does, and what it held comes again."""

import asyncio

from mesh.agent._executor import Attempts
from mesh.agent._runtime import Runtime
from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.bus.stores import JetStreamSteps
from protocol.wire.commands import Move
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, until


async def test_a_turn_that_came_again_does_not_keep_an_instance_from_leaving_while_the_bus_is_away(
    stage: Stage,
) -> None:
    began: list[int] = []

    async def endless(turn: Turn) -> Move:
        began.append(turn.round)
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    await stage.guard()
    client = await stage.client()
    async with stage.mesh.connected_as("a") as bus:
        first = Runtime(bus, Agent("a", endless))
        running = asyncio.create_task(first.run())
        await client.submit("hello")
        await until(lambda: len(began) == 1)
        await first.drain(0.0)  # given back, so that the next delivery is not the first
        running.cancel()
        second = Runtime(bus, Agent("a", endless))
        again = asyncio.create_task(second.run())
        await until(lambda: len(began) == 2)
        await stage.mesh.server.kill()
        async with asyncio.timeout(PATIENCE_S):
            await second.drain(0.1)
        again.cancel()
        await asyncio.gather(running, again, return_exceptions=True)
        await stage.mesh.server.start()
    await stage.back()


async def test_a_round_that_was_given_back_is_no_crash(stage: Stage) -> None:
    async with stage.mesh.connected_as("a") as bus:
        for _ in range(8):
            request = "c1_01ARZ3NDEKTSV4RRFFQ69G5FAV"
            attempt = Attempts(JetStreamSteps(bus, "a"), request=request, turn="t", round_=0)
            assert not await attempt.is_crash_loop()
            await attempt.given_back()
