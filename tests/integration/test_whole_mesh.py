"""Server, guard and agents in one test, as docs/testing.md shows it."""

from pathlib import Path

import pytest

from mesh.agent import Turn, agent
from mesh.agent.definition import Agent
from mesh.model import ClaudeAgent
from mesh.model.port import Reply
from mesh.model.prompt import Instructions
from mesh.testing import LocalMesh, StrictModel, driven_by, fleet_of, says
from protocol.wire.commands import Move, Usage
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.events import type_of
from protocol.wire.ids import AgentName
from protocol.wire.prices import MTOK, Price, Tokens, price_list
from tests.servers import eventually


@agent(name="front")
async def front(turn: Turn) -> Move:
    return turn.hand_back("no") if turn.depth else turn.transfer("back", summary="go on")


BACK = ClaudeAgent("back", instructions=Instructions("1", "Help."))


async def test_a_request_goes_all_the_way(tmp_path: Path) -> None:
    with driven_by(StrictModel(says("done"))) as model:
        async with LocalMesh([front, BACK], tmp_path) as mesh:
            outcome = await mesh.send("hello", facts={"name": "Ada"})
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
        outcome = await mesh.send("hello")
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
            outcome = await mesh.send("hello")
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
