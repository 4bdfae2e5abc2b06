"""Attacks on offers: an agent takes them and never claims. They come to the others all the same.

The liar is an agent of the fleet, on a connection of its own. It is there before anybody else, so that every
offer is in its hands first.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
import pytest_asyncio

from mesh.agent import Turn, agent
from mesh.agent.definition import Agent
from mesh.bus.consumer import Message, Puller
from mesh.bus.streams import inbox_consumer
from mesh.testing import EmbeddedBus
from protocol.wire import events, subjects
from protocol.wire.config import AgentEntry, Fleet, Policy
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete, Delegate, Move, Task
from protocol.wire.subjects import intent_inbox
from tests.certain import known
from tests.guard.actor import Actor
from tests.guard.stage import Stage, furnished_mesh, staged
from tests.servers import PATIENCE_S, until

REQUESTS = 4
BEAT_S = 0.2
FLEET = Fleet(
    name="offers",
    entry=AgentName("lead"),
    agents={
        name: AgentEntry(name=AgentName(name), intents=("read",) if name != "lead" else ())
        for name in ("lead", "liar", "honest")
    },
    clients=(AgentName("c1"),),
    operators=(AgentName("op"),),
    swarms=True,
)
SOON = Policy(name="soon", topology="swarm", claim_within_s=1.5)

Keeps = Callable[[Message], Awaitable[None]]


async def never_acks(message: Message) -> None:
    """Let the lease run out, and keep what comes again, too."""
    await asyncio.Event().wait()


async def holds_forever(message: Message) -> None:
    while True:
        message.in_progress()
        await asyncio.sleep(BEAT_S)


async def acks_at_once(message: Message) -> None:
    message.ack()


LIARS = pytest.mark.parametrize(
    "keeps", [never_acks, holds_forever, acks_at_once], ids=lambda keeps: keeps.__name__
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def furnished(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBus]:
    async with furnished_mesh(tmp_path_factory.mktemp("mesh"), FLEET) as mesh:
        async with mesh.connected_as("admin") as admin:
            await admin.publish_durable(subjects.policy(SOON.name), msgspec.json.encode(SOON))
        yield mesh


@pytest_asyncio.fixture
async def stage(furnished: EmbeddedBus) -> AsyncIterator[Stage]:
    async with staged(furnished) as own:
        yield own


class Liar:
    """Takes what lies in its inbox and in its intent's, and keeps it in its own way."""

    def __init__(self, keeps: Keeps) -> None:
        self._keeps = keeps
        self.taken: list[str] = []
        """Requests, by the offers of its intent."""
        self.own: list[str] = []
        """Requests, by what lay in its own inbox."""

    async def begin(self, stage: Stage) -> None:
        bus = await stage.bus("liar", "pulls")
        for inbox, kept in ((intent_inbox("read"), self.taken), ("liar", self.own)):
            puller = Puller(bus, "LOG", inbox_consumer(inbox), self._take(kept), slots=32, expires_s=1.5)
            await puller.start()
            stage.at_end(puller.close)
        await Actor(bus, "liar", 0).announce()

    def _take(self, kept: list[str]) -> Keeps:
        async def take(message: Message) -> None:
            kept.append(message.subject.rpartition(".")[2])
            await self._keeps(message)

        return take


@agent(name="honest", concurrency=1)
async def honest(turn: Turn) -> Move:
    return turn.deliver("read")


async def asked(stage: Stage, liar: Liar) -> tuple[Actor, list[str]]:
    """Return the lead, and requests with an offer each, all in the hands of the liar."""
    await stage.guard()
    client, lead = await stage.client(), await stage.actor("lead", served=True)
    await liar.begin(stage)
    requests = [str(await client.submit("read this", policy=SOON.name)) for _ in range(REQUESTS)]
    plan = Delegate(tasks=(Task(name="one", summary="read", intent="read"),))
    for request in requests:
        await lead.propose(request, await lead.work(request), plan)
    await until(lambda: set(requests) <= set(liar.taken), PATIENCE_S)
    return lead, requests


async def results(lead: Actor, requests: list[str]) -> list[tuple[str, str]]:
    """Answer each request once its read is over; return what became of the reads, and who had them."""
    found = list[tuple[str, str]]()
    for request in requests:
        work = await lead.work(request, round_=1)
        found += [(result.status, str(result.agent)) for result in work.results]
        await lead.propose(request, work, Complete(answer="done"))
    return found


@LIARS
async def test_an_offer_that_a_liar_keeps_is_done_by_the_honest_reader(stage: Stage, keeps: Keeps) -> None:
    liar, reader = Liar(keeps), honest
    assert isinstance(reader, Agent)
    lead, requests = await asked(stage, liar)
    await stage.runtime(reader)
    assert await results(lead, requests) == [("delivered", "honest")] * REQUESTS


@LIARS
async def test_where_nobody_is_honest_the_failure_says_who_took_the_offer(stage: Stage, keeps: Keeps) -> None:
    liar = Liar(keeps)
    lead, requests = await asked(stage, liar)
    await until(lambda: set(requests) <= set(liar.own), PATIENCE_S)
    assert [status for status, _ in await results(lead, requests)] == ["failed"] * REQUESTS
    for request in requests:
        failed = await stage.reached(request, events.TaskFailed)
        assert failed.error.code == "unclaimed"
        assert "liar took it and did not claim it" in failed.error.message
        took = {one.entry.name: one.took for one in known(failed.grounds).candidates}
        assert took == {"liar": True}
