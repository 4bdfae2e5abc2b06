"""A turn as its code sees it."""

from typing import Any

import pytest
from msgspec.structs import replace

from mesh.agent import Fact, Turn, tool
from mesh.agent.errors import ActionNotAllowed
from mesh.model.loop import drive
from mesh.testing import MemorySteps, StrictModel, calls, says, turn
from mesh.testing.harness import turn_of
from protocol.wire.commands import Complete, Escalate, HandBack, Transfer
from protocol.wire.handoff import Constraints
from protocol.wire.ids import AgentName


@tool
async def look(key: str) -> str:
    """Look something up."""
    return f"found {key}"


@tool(effect="idempotent")
async def pay(amount: int, idempotency_key: str) -> str:
    """Pay."""
    return idempotency_key


def test_facts_are_read_by_key() -> None:
    given = turn(facts=[Fact(key="name", value="Ada", labels=("pii",))])
    assert given.facts["name"] == "Ada"
    assert given.handoff.facts[0].labels == ("pii",)


def test_facts_cannot_be_changed_in_place() -> None:
    with pytest.raises(TypeError):
        turn(facts={"a": 1}).facts["a"] = 2  # type: ignore[index]


def test_peers_are_the_others_of_the_fleet() -> None:
    assert set(turn(agent="a", peers=("b", "c")).peers) == {"b", "c"}


def test_a_transfer_says_only_what_is_new() -> None:
    move = turn(facts={"old": 1}).transfer("b", summary="two\nlines", facts={"new": 2}, drop=["old"])
    assert isinstance(move, Transfer)
    assert move.summary == "two lines"
    assert [fact.key for fact in move.facts] == ["new"]
    assert move.drop == ("old",)


@pytest.mark.parametrize(
    ("move", "kind"),
    [
        pytest.param(turn().hand_back("not mine"), HandBack, id="hand_back"),
        pytest.param(turn().complete({"ok": True}), Complete, id="complete"),
        pytest.param(turn().escalate("help"), Escalate, id="escalate"),
    ],
)
def test_every_move_is_a_value(move: Any, kind: type) -> None:
    assert isinstance(move, kind)


def test_a_later_round_knows_what_was_refused() -> None:
    asked = turn().transfer("b", summary="go")
    later = turn(refused=[(asked, "cycle")])
    assert later.round == 1
    assert later.refusals[0].rule == "cycle"
    assert later.refusals[0].move == asked


async def test_a_tool_call_is_reported() -> None:
    given = turn()
    assert await given.call(look, key="x") == "found x"
    await given.call(look, key="y")
    assert given.execution.report.actions == ("look",)


async def test_a_tool_that_is_not_allowed_is_not_run() -> None:
    given = turn(constraints=Constraints(allowed_actions=("other",)))
    with pytest.raises(ActionNotAllowed):
        await given.call(look, key="x")
    assert given.execution.report.actions == ()


def gone(**about: Any) -> Turn:
    """Return a turn whose agent was taken out of the fleet after the guard gave it the work."""
    made = turn(agent="a", peers=("b", "c"), **about)
    fleet = made.execution.fleet
    others = {name: entry for name, entry in fleet.agents.items() if name != "a"}
    return turn_of(made.request, made.execution.work, replace(fleet, entry=AgentName("b"), agents=others))


@pytest.mark.parametrize("own", [None, ("look", "pay")])
async def test_an_agent_that_has_left_the_fleet_has_no_peers_and_may_call_nothing(
    own: tuple[str, ...] | None,
) -> None:
    left = gone(constraints=Constraints(allowed_actions=own), steps=MemorySteps())
    assert left.peers == {}
    assert left.allowed_actions == frozenset()
    with pytest.raises(ActionNotAllowed):
        await left.call(look, key="x")
    assert left.execution.report.actions == ()


async def test_its_model_is_offered_neither_tools_nor_whom_to_hand_to() -> None:
    with StrictModel(calls(("look", {"key": "x"})), says("I cannot.")) as model:
        await drive(gone(), model, instructions="", tools=(look, pay))
    names = {spec.name for spec in model.prompts[0].tools}
    assert [name for name in names if name in ("look", "pay") or name.startswith("transfer")] == []


async def test_equal_calls_have_keys_of_their_own_and_every_round_has_the_same_ones() -> None:
    first, again = turn(), turn(refused=[(turn().complete(1), "size")])
    keys = [await first.call(pay, amount=1), await first.call(pay, amount=1), await first.call(pay, amount=2)]
    assert len(set(keys)) == 3
    assert [await again.call(pay, amount=1), await again.call(pay, amount=1)] == keys[:2]


def test_what_is_spent_is_reported() -> None:
    given = turn()
    given.spend(tokens=10, model_calls=1)
    given.spend(tokens=5, model_calls=1, nano_dollars=7)
    usage = given.execution.report.usage
    assert (usage.tokens, usage.model_calls, usage.nano_dollars) == (15, 2, 7)
