"""The moves that a model is offered: those that the guard may admit, and no other."""

from typing import Any

import pytest
from msgspec.structs import replace

from mesh.local.in_memory import turn_of
from mesh.model.loop import drive
from mesh.model.prompt import context_now, render
from mesh.testing import InMemoryGuard, fleet_of, turn, turn_in
from protocol.wire.events import HandoffAdmitted, MoveRefused
from tests.certain import is_
from tests.unit.model.doubles import TalkingModel, says
from tests.unit.model.test_loop import made_of


@pytest.mark.parametrize(
    ("about", "absent"),
    [
        pytest.param({}, "hand_back", id="nobody-to-go-back-to"),
        pytest.param({"human": False}, "escalate", id="no-people"),
    ],
)
async def test_a_move_that_cannot_make_sense_is_not_offered(about: dict[str, Any], absent: str) -> None:
    model = TalkingModel(says("ok"))
    await made_of(model, **about)
    assert absent not in {tool.name for tool in model.prompts[0].tools}


async def test_an_agent_on_the_path_is_offered_as_a_hand_back_or_not_at_all() -> None:
    """The guard would refuse each of these transfers by `cycle`."""
    model = TalkingModel(*[says("done")] * 2)
    given = turn(path=["first", "second", "agent"], peers=["first", "second", "other"])
    named = replace(given.execution.work, handoff=replace(given.handoff, return_to="first"))
    for work in (given.execution.work, named):
        await drive(turn_of("c1_r", work, given.execution.fleet), model, instructions="", tools=())
    offered = [{tool.name: tool.description for tool in prompt.tools} for prompt in model.prompts]
    assert [{name for name in each if name.startswith("transfer_to_")} for each in offered] == [
        {"transfer_to_other"}
    ] * 2
    assert [each.get("hand_back", "")[:27] for each in offered] == [
        "Give the work back to secon",
        "Give the work back to first",
    ]
    assert "- second" not in model.prompts[0].brief


async def test_what_came_with_no_return_has_no_way_back_to_offer() -> None:
    """The guard would refuse it, and the round would be lost."""
    model = TalkingModel(*[says("done")] * 2)
    given = turn(path=["first", "agent"], peers=["first", "other"])
    sealed = replace(given.execution.work, handoff=replace(given.handoff, no_return=True))
    for work in (given.execution.work, sealed):
        await drive(turn_of("c1_r", work, given.execution.fleet), model, instructions="", tools=())
    assert ["hand_back" in {tool.name for tool in prompt.tools} for prompt in model.prompts] == [True, False]


@pytest.mark.parametrize(("return_to", "back"), [("a", None), ("b", "b"), (None, "c")])
async def test_a_hand_back_is_offered_only_above_an_older_seal(
    return_to: str | None, back: str | None
) -> None:
    guard = InMemoryGuard(fleet_of("a", "b", "c", "d"))
    guard.submit("Fix it")
    guard.move(turn_in(guard).transfer("b", summary="look", no_return=True))
    assert context_now(turn_in(guard)).back is None
    guard.move(turn_in(guard).transfer("c", summary="look"))
    assert context_now(turn_in(guard)).back == "b"
    guard.move(turn_in(guard).transfer("d", summary="look", return_to=return_to))
    assert context_now(turn_in(guard)).back == back
    event = guard.move(turn_in(guard).hand_back("nothing found"))
    if back is None:
        assert is_(event, MoveRefused).refusal.rule == "no_return"
    else:
        assert is_(event, HandoffAdmitted).to == back
        assert context_now(turn_in(guard)).back == {"b": None, "c": "b"}[back]


async def test_a_second_visit_is_said_to_need_a_new_fact() -> None:
    model = TalkingModel(says("done"))
    given = turn(path=["first", "agent"], peers=["other", "another"], move="hand_back", from_agent="other")
    await drive(given, model, instructions="", tools=())
    told = {
        tool.name for tool in model.prompts[0].tools if "only with a fact that is new" in tool.description
    }
    assert told == {"transfer_to_other", "hand_back"}


async def test_a_second_visit_is_said_to_need_a_new_fact_and_the_guard_has_it_so() -> None:
    guard = InMemoryGuard(fleet_of("a", "b"))
    guard.submit("Fix it")
    guard.move(turn_in(guard).transfer("b", summary="look"))
    assert "new to the request" not in render(turn_in(guard))
    guard.move(turn_in(guard).hand_back("nothing found"))
    assert "gets it again only with a fact that is new to the request." in render(turn_in(guard))
    again = turn_in(guard)
    assert is_(guard.move(again.transfer("b", summary="look")), MoveRefused).refusal.rule == "cycle"
    now = turn_in(guard).transfer("b", summary="look", facts={"seen": "smoke"})
    assert is_(guard.move(now), HandoffAdmitted).to == "b"


async def test_whom_the_agent_was_not_made_to_hand_to_is_not_named_either() -> None:
    model = TalkingModel(says("done"))
    await drive(turn(peers=["b", "c"]), model, instructions="Be brief.", tools=(), handoffs={"b"})
    (prompt,) = model.prompts
    assert "- b" in prompt.brief
    assert "- c" not in prompt.brief
    assert [tool.name for tool in prompt.tools if tool.name.startswith("transfer")] == ["transfer_to_b"]
