"""A swarm on a real mesh: offers are pulled, claimed and held; nobody gets two of a set."""

from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from mesh.agent import Task, Turn, agent
from mesh.agent.definition import Agent
from mesh.model import Swarm
from mesh.testing import LocalMesh, fleet_of
from protocol.wire import events
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.ids import AgentName
from protocol.wire.moves import Move
from tests.servers import PATIENCE_S

READERS = ("r1", "r2", "r3")


def reader(name: str) -> Agent:
    @agent(name=name)
    async def read(turn: Turn) -> Move:
        await turn.post({"saw": turn.task_name})
        return turn.deliver(f"read {turn.task_name}")

    return read


@agent(name="lead")
async def writer(turn: Turn) -> Move:
    board = {by: facts["saw"] for by, facts in turn.board.items()}
    states = {name: each.status for name, each in turn.results.items()}
    return turn.complete({"states": states, "board": board})


def reads(turn: Turn) -> list[Task]:
    return [turn.task(f"look-{n}", summary="Look.", intent="read") for n in range(int(turn.facts["looks"]))]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalMesh]:
    entries = [AgentEntry(name=AgentName(name), intents=("read",)) for name in READERS]
    async with LocalMesh(
        [Swarm(writer, reads=reads), *map(reader, READERS)],
        tmp_path_factory.mktemp("swarm") / "mesh",
        fleet=msgspec.structs.replace(fleet_of("lead", *entries), swarms=True),
        policies={"default": Policy(topology="swarm")},
    ) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
async def test_reads_are_offered_claimed_and_spread(mesh: LocalMesh) -> None:
    outcome = await mesh.send("Look", facts={"looks": 3}, within_s=PATIENCE_S)
    happened = await mesh.events(outcome.request)
    assert outcome.answer["states"] == {f"look-{n}": "delivered" for n in range(3)}
    tasks = [event for event in happened if isinstance(event, events.TaskOpened)]
    opened = {event.name: event.to for event in tasks}
    assert sorted(opened.values()) == list(READERS)
    assert outcome.answer["board"] == {by: name for name, by in opened.items()}
    assert all(event.work.handoff.constraints.read_only for event in tasks)


@pytest.mark.asyncio(loop_scope="module")
async def test_more_reads_than_agents_are_all_done(mesh: LocalMesh) -> None:
    """Whoever is done with one claims another."""
    outcome = await mesh.send("Look", facts={"looks": 4}, within_s=PATIENCE_S)
    happened = await mesh.events(outcome.request)
    assert outcome.answer["states"] == {f"look-{n}": "delivered" for n in range(4)}
    opened = [event.name for event in happened if isinstance(event, events.TaskOpened)]
    assert sorted(opened) == [f"look-{n}" for n in range(4)]
