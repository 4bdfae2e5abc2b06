"""`mesh request watch`: of a request that is not there yet, and with what its turns do."""

import asyncio

from mesh.agent import Turn, tool
from mesh.agent.definition import Agent
from mesh.cli.exits import Exit
from mesh.model.loop import drive
from protocol.wire.commands import Move
from tests.guard.stage import Stage
from tests.system.office import Office
from tests.system.test_cli_cost import Halting, costing


@tool
async def look() -> str:
    """Look."""
    return "secret value"


@tool(effect="idempotent")
async def pay(idempotency_key: str) -> str:
    """Pay."""
    return "paid"


async def test_a_request_that_is_not_there_is_said_to_be_awaited_once(office: Office, stage: Stage) -> None:
    client = await stage.client()
    request = client.new_id()
    remark = f"mesh: there is no request {request} in the log yet; waiting\n"
    async with office.running("request", "watch", request, until=remark, who="audit") as watch:
        await client.submit("hello", request=request)
        await asyncio.to_thread(watch.wait_for, "submit  admitted")
        assert watch.said.count("mesh:") == 1
    await office.mesh("request", "cancel", request)


async def test_follow_shows_the_steps_so_far_and_those_to_come(office: Office, stage: Stage) -> None:
    model = Halting(costing("let me see", "look"))

    async def first(turn: Turn) -> Move:
        await turn.call(look)
        await turn.call(pay)
        return turn.transfer("b", summary="please")

    async def second(turn: Turn) -> Move:
        return await drive(turn, model, instructions="B", tools=(look,))

    await stage.runtime(Agent("a", first, tools=(look, pay)))
    await stage.runtime(Agent("b", second, tools=(look,)))
    request = await (await stage.client()).submit("hello")
    await model.halts.wait()
    watching = ("request", "watch", "--follow", request)
    async with office.running(*watching, until="b: [look]", who="audit") as watch:
        so_far = watch.said
        assert "secret" not in so_far
        lines = ["submit  admitted", "a: [look]", "a: [pay …]", "a: [pay]", "transfer  admitted"]
        places = [so_far.index(line) for line in [*lines, "b: let me see", "b: [look]"]]
        assert places == sorted(places)
        done = await office.mesh("request", "cancel", request)
        assert done.status == Exit.DONE, done
        assert await asyncio.to_thread(watch.ended) == Exit.FAILED
        assert watch.said.count("b: [look]") == 1


async def test_steps_that_come_later_are_shown_as_they_are_journaled(office: Office, stage: Stage) -> None:
    may_go_on = asyncio.Event()

    async def slow(turn: Turn) -> Move:
        await turn.call(look)
        await may_go_on.wait()
        await turn.call(pay)
        return turn.complete("done")

    await stage.runtime(Agent("a", slow, tools=(look, pay)))
    request = await (await stage.client()).submit("hello")
    watching = ("request", "watch", "--follow", request)
    async with office.running(*watching, until="a: [look]", who="op") as watch:
        assert "a: [pay" not in watch.said
        may_go_on.set()
        assert await asyncio.to_thread(watch.ended) == Exit.DONE
        assert watch.said.index("a: [pay]") < watch.said.index("answer: done")


async def test_what_makes_no_sense_together_is_a_matter_of_usage(office: Office) -> None:
    request, _ = await office.begun()
    done = await office.mesh("request", "watch", request, "--follow", "--json")
    assert done.status == Exit.USAGE
    assert "one of --follow and --json" in done.err
