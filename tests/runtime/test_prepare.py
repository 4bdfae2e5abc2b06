"""What an agent loads for its turns is loaded before the first of them; a failure there stops nobody."""

import asyncio

from mesh.agent.definition import Agent
from mesh.agent.runtime import Runtime
from mesh.agent.turn import Turn
from protocol.messages import Move
from tests.guard.stage import Stage
from tests.servers import until


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
    await asyncio.wait_for(begun.wait(), 20)
    assert not runtime.ready
    assert await stage.inbox_left("a") == 1
    go_on.set()
    assert (await client.wait(request, timeout_s=20)).answer == "done"
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
    assert (await client.wait(await client.submit("hello"), timeout_s=20)).answer == "done"
    assert tried == [True]
    await until(lambda: runtime.ready)
