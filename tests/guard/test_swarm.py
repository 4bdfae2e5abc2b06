"""A guard is killed between two steps of a swarm: another finishes, and no task is opened twice."""

import asyncio

import msgspec
import pytest

from mesh.ops import health
from mesh.ops.health import Look
from protocol.wire.commands import FactsPost, MoveProposed, OfferClaimed
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.events import TaskOffered, TaskOpened
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete, Delegate, Deliver, Task
from tests.guard.stage import FLEET, HASTY, Stage
from tests.servers import PATIENCE_S

SECRET = (Fact(key="ssn", value="1", labels=("pii",)),)


def _fleet() -> Fleet:
    readers = {
        name: AgentEntry(name=AgentName(name), intents=("read",), clearance=("pii",) if name == "c" else ())
        for name in "bc"
    }
    return msgspec.structs.replace(HASTY, agents={**FLEET.agents, **readers}, swarms=True)


FURNISHED = _fleet()


@pytest.mark.parametrize(
    "point",
    [
        *("append:task.offered", "append:facts.withheld", "append:task.opened", "append:facts.posted"),
        *("guard.due#1", "guard.followed#1"),  # the offer
        *("guard.heard#3", "guard.decided#1", "guard.withheld#1", "guard.armed#3"),  # the claim
    ],
)
async def test_a_swarm_goes_on_where_its_guard_died(stage: Stage, point: str) -> None:
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")
    async with stage.doomed_guard(point) as doomed:

        async def succeed() -> None:
            await doomed.ended()
            await stage.guard("heir")

        succession = asyncio.create_task(succeed())
        request = await client.submit("hello", policy="swarm", facts=SECRET)
        plan = Delegate(tasks=(Task(name="one", summary="read", intent="read"),))
        await a.propose(request, await a.work(request), plan)
        log = await stage.reaches(request, "task.offered")
        offer = next(event for event in log if isinstance(event, TaskOffered))
        assert [fact.key for fact in offer.offer.handoff.facts] == ["text"]
        await b.say(request, OfferClaimed(turn=offer.offer.turn, round=0))
        work = await b.work(request)
        await b.say(request, FactsPost(turn=work.turn, round=0, post=0, facts=(Fact(key="k", value=1),)))
        await stage.reaches(request, "facts.posted")
        await b.say(request, MoveProposed(turn=work.turn, round=0, move=Deliver(summary="here")))
        joined = await a.work(request, round_=1)
        assert [fact.fact.value for fact in joined.board] == [1]
        await a.propose(request, joined, Complete(answer="done"))
        assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"
        await stage.drained()
        log = await stage.log(request)
        assert len([event for event in log if isinstance(event, TaskOpened)]) == 1
        assert len([event for event in log if isinstance(event, TaskOffered)]) == 1
        await succession


async def test_offers_that_nobody_is_there_to_take_are_found(stage: Stage) -> None:
    await stage.guard()
    client, a, b = await stage.client(), await stage.actor("a", served=True), await stage.actor("b")
    request = await client.submit("hello", policy="swarm")
    plan = Delegate(tasks=(Task(name="one", summary="read", intent="read"),))
    await a.propose(request, await a.work(request), plan)
    offer = (await stage.reached(request, TaskOffered)).offer

    async def found() -> list[str]:
        told = await health.run("agents", Look(await stage.bus("op")))
        return [each.text for each in told if "offers of" in each.text]

    [text] = await found()
    assert text.startswith("nobody serves an agent that takes offers of read (b, c); 1 offer waits for it")
    assert request in text
    await b.say(request, OfferClaimed(turn=offer.turn, round=0))
    await b.work(request)
    assert await found() == []
    await client.cancel(request)
    await client.wait(request, timeout_s=PATIENCE_S)


async def test_a_claimed_read_of_a_reader_that_died_for_good_is_done_by_another(stage: Stage) -> None:
    """Nobody serves its claimant; the policy would wait an hour for it."""
    await stage.guard()
    client, a = await stage.client(), await stage.actor("a", served=True)
    dead, alive = await stage.actor("b"), await stage.actor("c", served=True)
    request = await client.submit("hello", policy="claimed-soon")
    plan = Delegate(tasks=(Task(name="one", summary="read", intent="read", fallback=True),))
    await a.propose(request, await a.work(request), plan)
    log = await stage.reaches(request, "task.offered")
    first = next(event for event in log if isinstance(event, TaskOffered))
    await dead.say(request, OfferClaimed(turn=first.offer.turn, round=0))
    await stage.reaches(request, "task.opened")
    log = await stage.reaches(request, "task.offered", 2)
    again = [event for event in log if isinstance(event, TaskOffered)][-1]
    await alive.say(request, OfferClaimed(turn=again.offer.turn, round=0))
    await alive.propose(request, await alive.work(request), Deliver(summary="here"))
    assert [each.agents for each in (await a.work(request, round_=1)).results] == [("b", "c")]
    await a.propose(request, await a.work(request, round_=1), Complete(answer="done"))
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"
