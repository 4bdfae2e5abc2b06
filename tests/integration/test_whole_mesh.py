"""A whole mesh on this machine: in one test's process, and as processes that are started again."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from mesh.agent import Turn, agent
from mesh.agent.definition import Agent
from mesh.bus.roles import GET
from mesh.fleet.file import parse_fleet
from mesh.local.fleet import LocalFleet
from mesh.model import ROUTING, ClaudeAgent
from mesh.model.port import Reply
from mesh.model.prompt import Instructions
from mesh.testing import LocalMesh, StrictModel, driven_by, fleet_of, says
from protocol.wire import subjects
from protocol.wire.commands import Usage
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.events import type_of
from protocol.wire.ids import AgentName
from protocol.wire.moves import Move
from protocol.wire.prices import MTOK, Price, Tokens, price_list
from protocol.wire.records import Card
from tests.servers import PATIENCE_S, ROOT, eventually, until


@agent(name="front")
async def front(turn: Turn) -> Move:
    return turn.hand_back("no") if turn.depth else turn.transfer("back", summary="go on")


BACK = ClaudeAgent("back", instructions=Instructions("1", "Help."))


async def test_a_request_goes_all_the_way(tmp_path: Path) -> None:
    with driven_by(StrictModel(says("done"))) as model:
        async with LocalMesh([front, BACK], tmp_path) as mesh:
            outcome = await mesh.send("hello", facts={"name": "Ada"}, within_s=PATIENCE_S)
            happened = await mesh.events(outcome.request)
    assert (outcome.status, outcome.answer) == ("completed", "done")
    assert [type_of(event) for event in happened] == [
        "request.opened",
        "handoff.admitted",
        "facts.withheld",
        "request.completed",
    ]
    assert len(model.prompts) == 1


async def test_the_fleet_and_its_policies_are_the_tests_own(tmp_path: Path) -> None:
    fleet = fleet_of(AgentEntry(name=AgentName("front"), to=()), "back", human=False)
    policies = {"default": Policy(max_refusals=1)}
    async with LocalMesh([front], tmp_path, fleet=fleet, policies=policies) as mesh:
        outcome = await mesh.send("hello", within_s=PATIENCE_S)
        happened = await mesh.events(outcome.request)
    assert outcome.status == "failed"
    assert [type_of(event) for event in happened].count("move.refused") == 2


async def test_what_a_service_dies_of_is_said(tmp_path: Path) -> None:
    nobody = Agent("nobody", front.handler)
    with pytest.raises(KeyError, match="nobody"):
        async with LocalMesh([front, nobody], tmp_path, fleet=fleet_of("front")):
            pass


async def test_prices_are_those_that_the_request_keeps(tmp_path: Path) -> None:
    prices = {"big": Price(input=3, output=0)}
    costly = Reply(text="done", usage=Usage(tokens=1, model_calls=1), tokens=Tokens(input=MTOK), model="big")
    with driven_by(StrictModel(costly)):
        async with LocalMesh([BACK], tmp_path, prices=prices) as mesh:
            outcome = await mesh.send("hello", within_s=PATIENCE_S)
            opened, kept_back, _ = await mesh.events(outcome.request)
    assert price_list(opened.work.prices) == prices  # type: ignore[union-attr]
    assert kept_back.report.usage.nano_dollars == 3  # type: ignore[union-attr]


@agent(name="broken")
async def broken(turn: Turn) -> Move:
    raise ValueError("it broke")


async def test_a_request_that_a_person_has_says_so_when_it_comes_to_no_end(tmp_path: Path) -> None:
    async with LocalMesh([broken], tmp_path, policies={"default": Policy(max_retries=0)}) as mesh:
        client = await mesh.client()
        request = await client.submit("hello")

        async def raised() -> bool:
            return "escalation.raised" in map(type_of, await mesh.events(request))

        await eventually(raised)
        with pytest.raises(TimeoutError) as late:
            await mesh.send("hello", request=request, within_s=0.1)
    said = "no end of {} within 0.1 s: the last event is escalation.raised (bug), and human has it"
    assert str(late.value) == said.format(request)


GUARD = "guard-1"
FLEET = """
name = "alone"
entry = "front"
[agents.front]
[clients.app]
"""


class Kept(LocalFleet):
    """A server and a guard that are started again, and what is said of that."""

    def __init__(self, directory: Path) -> None:
        self.said: list[str] = []
        super().__init__(
            parse_fleet(FLEET),
            directory,
            sync_always=False,
            restart_s=(0.01, 0.02),
            on_trouble=self.said.append,
        )

    async def says(self, what: str, times: int = 1) -> None:
        await until(lambda: sum(what in line for line in self.said) >= times)


@pytest_asyncio.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    async with Kept(tmp_path / "mesh") as mesh:
        yield mesh


async def test_a_service_that_cannot_be_started_is_named_and_tried_again_until_it_runs(kept: Kept) -> None:
    guard = kept.services[GUARD]
    log = guard.log
    guard.log = kept.directory / "nowhere" / "guard.log"
    os.kill(guard.pid, signal.SIGKILL)
    await kept.says("guard-1 cannot be started, and is tried again: [Errno 2]", times=3)
    assert not guard.running
    guard.log = log
    await kept.says("guard-1 runs again as process")
    assert guard.running
    assert sum("was killed by SIGKILL" in line for line in kept.said) == 1


async def test_a_server_that_cannot_be_started_is_named_and_tried_again_until_it_runs(kept: Kept) -> None:
    accounts = kept.server._accounts
    kept.server._accounts = "nonsense {"
    os.kill(kept.server.pid, signal.SIGKILL)
    await kept.says("nats-server cannot be started, and is tried again: nats-server does not accept", times=2)
    kept.server._accounts = accounts
    await kept.says("nats-server runs again as process")
    async with await kept.connect_as("app"):
        assert kept.server.running


DRIVEN = """
name = "driven"
entry = "a"
[agents.a]
module = "tests.live.prompted:agent"
[clients.app]
[viewers.audit]
"""


async def test_services_do_not_share_what_is_of_one_process_and_a_key_lets_an_agent_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_HEALTH", "127.0.0.1:1")  # nobody may listen there
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-a-service")
    monkeypatch.delenv("MESH_MODEL", raising=False)
    file = parse_fleet(DRIVEN)
    async with LocalFleet(file, tmp_path / "mesh", sync_always=False, search=[ROOT]) as mesh:
        assert set(mesh.services) == {GUARD, "a"}
        async with await mesh.connect_as("audit") as audit:
            kept = await audit.request(f"{GET}CARDS.{subjects.card('a')}")
        assert msgspec.json.decode(kept.data, type=Card).model == ROUTING
