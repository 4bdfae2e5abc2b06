"""Server, guard and agents in one test, as docs/testing.md shows it."""

from pathlib import Path

import pytest

from mesh.agent import Turn, agent
from mesh.agent.definition import Agent
from mesh.model import ClaudeAgent
from mesh.model.instructions import Instructions
from mesh.testing import StrictModel, WholeMesh, driven_by, fleet_of, says
from protocol.events import type_of
from protocol.messages import Move
from protocol.policy import Policy


@agent(name="front")
async def front(turn: Turn) -> Move:
    return turn.hand_back("no") if turn.depth else turn.transfer("back", summary="go on")


BACK = ClaudeAgent("back", instructions=Instructions("1", "Help."))


async def test_a_request_goes_all_the_way(tmp_path: Path) -> None:
    with driven_by(StrictModel(says("done"))) as model:
        async with WholeMesh([front, BACK], tmp_path) as mesh:
            outcome = await mesh.send("hello", facts={"name": "Ada"})
            happened = await mesh.events(outcome.request)
    assert (outcome.status, outcome.answer) == ("completed", "done")
    assert [type_of(event) for event in happened] == [
        "request.opened",
        "handoff.admitted",
        "request.completed",
    ]
    assert len(model.prompts) == 1


async def test_the_fleet_and_its_policies_are_the_tests_own(tmp_path: Path) -> None:
    fleet = fleet_of("front", "back", human=False)
    policies = {"default": Policy(max_depth=0, max_refusals=0)}
    async with WholeMesh([front], tmp_path, fleet=fleet, policies=policies) as mesh:
        outcome = await mesh.send("hello")
        happened = await mesh.events(outcome.request)
    assert outcome.status == "failed"
    assert "move.refused" in [type_of(event) for event in happened]


async def test_what_a_service_dies_of_is_said(tmp_path: Path) -> None:
    nobody = Agent("nobody", front.handler)
    with pytest.raises(KeyError, match="nobody"):
        async with WholeMesh([front, nobody], tmp_path, fleet=fleet_of("front")):
            pass
