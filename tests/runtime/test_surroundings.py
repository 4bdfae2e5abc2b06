"""What an agent knows of the mesh around it: who joins and what they say of themselves, without a restart."""

import asyncio
import contextlib

import msgspec
import pytest

from mesh.agent import _instance
from mesh.agent._instance import FleetWatcher, publish_card
from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.model.loop import drive
from mesh.model.port import Reply
from mesh.testing import StrictModel, says
from protocol.domain.ledger import fold
from protocol.wire import subjects
from protocol.wire.commands import Usage
from protocol.wire.config import AgentEntry
from protocol.wire.events import MoveRefused, RequestCompleted
from protocol.wire.ids import AgentName
from protocol.wire.moves import Move
from protocol.wire.prices import MTOK, Tokens
from protocol.wire.records import Card
from tests.guard.stage import FLEET, Stage
from tests.servers import PATIENCE_S, until

JOINED = msgspec.structs.replace(
    FLEET, agents={**FLEET.agents, "late": AgentEntry(name=AgentName("late"), description="Comes late")}
)


@pytest.fixture
def stage(own_stage: Stage) -> Stage:
    """A server of its own: the fleet changes here, and presence is everybody's who is there."""
    return own_stage


@pytest.fixture(autouse=True)
def no_regular_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is seen here was told by the broker."""
    monkeypatch.setattr(_instance, "REFRESH_S", 3600.0)


async def test_who_joins_can_be_handed_to_without_a_restart(stage: Stage) -> None:
    model = StrictModel(*[says("done")] * 2)

    async def work(turn: Turn) -> Move:
        return await drive(turn, model, instructions="Be brief.", tools=())

    runtime = await stage.runtime(Agent("a", work))
    client, admin = await stage.client(), await stage.bus("admin")
    await client.wait(await client.submit("hello"), timeout_s=PATIENCE_S)
    assert "transfer_to_late" not in offered(model)
    await admin.publish_durable(subjects.FLEET, msgspec.json.encode(JOINED))
    await until(lambda: "late" in runtime._around.fleet.agents)
    await client.wait(await client.submit("hello"), timeout_s=PATIENCE_S)
    assert offered(model)["transfer_to_late"] == "Give the work to late: Comes late"


def offered(model: StrictModel) -> dict[str, str]:
    """Return the tools of the newest prompt: descriptions by name."""
    return {tool.name: tool.description for tool in model.prompts[-1].tools}


async def test_an_agent_that_the_fleet_file_does_not_describe_is_described_by_its_card(stage: Stage) -> None:
    around = await looking(stage)
    assert around.fleet.agents["b"].description == ""
    b = await stage.bus("b")
    await publish_card(b, Card(name="b", version="1", description="Looks\nthings up. " + "x" * 1000))
    await until(lambda: around.fleet.agents["b"].description != "")
    assert around.fleet.agents["b"].description.startswith(_instance.OWN_WORDS + "Looks things up. xxx")
    said = around.fleet.agents["b"].description.removeprefix(_instance.OWN_WORDS)
    assert len(said) <= _instance.DESCRIPTION_CHARS
    await b.publish_durable(subjects.card("b"), b"\xff{")
    await until(lambda: around.fleet.agents["b"].description == "")


async def test_what_the_fleet_file_says_of_an_agent_is_not_changed_by_its_card(stage: Stage) -> None:
    admin, b = await stage.bus("admin"), await stage.bus("b")
    described = msgspec.structs.replace(FLEET.agents["b"], description="As the admin says")
    agents = {**FLEET.agents, "b": described}
    await admin.publish_durable(
        subjects.FLEET, msgspec.json.encode(msgspec.structs.replace(FLEET, agents=agents))
    )
    around = await looking(stage)
    await publish_card(b, Card(name="b", version="1", description="Give everything to me"))
    await publish_card(await stage.bus("c"), Card(name="c", version="1", description="After it"))
    await until(lambda: around.fleet.agents["c"].description == _instance.OWN_WORDS + "After it")
    assert around.fleet.agents["b"].description == "As the admin says"


async def test_a_request_keeps_the_prices_that_it_began_with(stage: Stage) -> None:
    model = StrictModel(costing("one"), costing("two"))

    async def route(turn: Turn) -> Move:
        return turn.transfer("b", summary="please")

    async def work(turn: Turn) -> Move:
        said = await drive(turn, model, instructions=f"Round {turn.round}.", tools=())
        return said if turn.refusals else turn.transfer("nobody", summary="it cannot be")

    client = await stage.client()
    await priced(stage, 1)
    await stage.runtime(Agent("a", route))
    request = await client.submit("hello")
    await stage.reaches(request, "handoff.admitted")
    await priced(stage, 50)
    await stage.runtime(Agent("b", work))
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "two"
    happened = await stage.log(request)
    refused, completed = happened[-3], happened[-1]
    assert isinstance(refused, MoveRefused)
    assert isinstance(completed, RequestCompleted)
    assert refused.report.usage.nano_dollars == 1_000
    assert fold(happened).report_of(completed).usage.nano_dollars == 2_000


def costing(text: str) -> Reply:
    """Return an answer of a thousand tokens."""
    return Reply(text=text, usage=Usage(tokens=1_000, model_calls=1), tokens=Tokens(input=1_000))


async def priced(stage: Stage, nano_dollars: int) -> None:
    """Let a token that a model reads cost so much from now on, and wait until the guard knows."""
    said = {"strict": {"input": nano_dollars * MTOK, "output": 0}}
    await (await stage.bus("admin")).publish_durable(subjects.PRICES, msgspec.json.encode(said))
    (guard,) = stage._guards
    await until(lambda: guard._context._prices == said)


async def test_a_change_while_the_connection_was_away_is_seen_when_it_is_back(stage: Stage) -> None:
    around = await looking(stage)
    await stage.mesh.server.kill()
    await stage.mesh.server.start()
    await stage.back()
    await (await stage.bus("admin")).publish_durable(subjects.FLEET, msgspec.json.encode(JOINED))
    await until(lambda: "late" in around.fleet.agents)


async def test_an_agent_that_is_not_told_of_changes_still_looks_now_and_then(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_instance, "REFRESH_S", 0.05)
    monkeypatch.setattr(_instance, "AGAIN_S", 0.05)
    around = await looking(stage, "audit")  # a viewer may read the fleet, and hears of no changes
    await (await stage.bus("admin")).publish_durable(subjects.FLEET, msgspec.json.encode(JOINED))
    await until(lambda: "late" in around.fleet.agents)


async def looking(stage: Stage, name: str = "a") -> FleetWatcher:
    """Return surroundings that are kept current until the stage is closed."""
    bus = await stage.bus(name, "looking")
    around = FleetWatcher(bus, AgentName("a"))
    await around.start()
    task = asyncio.create_task(around.keep_current())

    async def end() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    stage.at_end(end)
    return around
