"""Watching a request from the command line to its end, whatever becomes of the broker meanwhile."""

import asyncio
from pathlib import Path

import pytest

from mesh.cli.exits import Exit
from mesh.errors import Unreachable
from mesh.ops.requests import story_so_far
from protocol.wire.commands import Complete, Transfer
from tests.guard.stage import Stage
from tests.servers import until
from tests.system.office import Office

TO_B = Transfer(to_agent="b", summary="please")  # type: ignore[arg-type]


async def test_watching_a_request_outlives_the_broker(own_stage: Stage, tmp_path: Path) -> None:
    office = Office(own_stage, tmp_path)
    a, b = await own_stage.actor("a"), await own_stage.actor("b")
    request, work = await office.begun()
    async with office.running("request", "watch", request, until="submit  admitted") as watch:
        await own_stage.mesh.server.kill()
        await own_stage.mesh.server.start()
        await own_stage.back()
        await a.propose(request, work, TO_B)
        await asyncio.to_thread(watch.wait_for, "transfer  admitted")
        await b.propose(request, await b.work(request), Complete(answer="all is well"))
        assert await asyncio.to_thread(watch.ended) == Exit.DONE
        said = watch.said
    assert said.count("submit  admitted") == said.count("transfer  admitted") == 1
    assert said.endswith("answer: all is well\n")


async def test_a_broker_that_is_away_is_waited_for_unless_it_was_never_there(
    own_stage: Stage, tmp_path: Path
) -> None:
    request, work = await Office(own_stage, tmp_path).begun()
    a, bus = await own_stage.actor("a"), await own_stage.bus("op")
    story = story_so_far(bus, request)
    assert len(await anext(story)) == 1
    await own_stage.mesh.server.kill()
    await until(lambda: not bus.connected)

    async def goes_on() -> None:
        await own_stage.mesh.server.start()
        await own_stage.back()
        await a.propose(request, work, TO_B)

    bodies, _ = await asyncio.gather(anext(story), goes_on())  # it looks before the broker is there again
    assert len(bodies) == 2
    await story.aclose()  # type: ignore[attr-defined]
    await own_stage.mesh.server.kill()
    await until(lambda: not bus.connected)
    with pytest.raises(Unreachable):
        await anext(story_so_far(bus, request))
    await own_stage.mesh.server.start()
    await own_stage.back()
