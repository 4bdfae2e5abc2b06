"""A model of the test's own behind agents that a model drives, and the turn that a court gives next."""

import pytest

from mesh.model import ClaudeAgent
from mesh.model.port import Reply
from mesh.model.prompt import Instructions
from mesh.testing import (
    FleetHarness,
    InMemoryGuard,
    NotDecided,
    StrictModel,
    calls,
    driven_by,
    fleet_of,
    says,
    turn,
    turn_in,
)
from protocol.wire.commands import Complete, Usage
from protocol.wire.config import Policy
from protocol.wire.handoff import Budget
from protocol.wire.prices import MTOK, Price, Tokens

TOLD = Instructions("1", "Help.")
FRONT, BACK = ClaudeAgent("front", instructions=TOLD), ClaudeAgent("back", instructions=TOLD)
GIVE = calls(("transfer_to_back", {"summary": "go on"}))


async def test_one_model_for_all() -> None:
    with driven_by(StrictModel(GIVE, says("done"))) as model:
        walk = await FleetHarness(
            InMemoryGuard(fleet_of("front", "back")), {"front": FRONT, "back": BACK}
        ).go("hello")
    assert (walk.path, walk.answer) == (["front", "back"], "done")
    assert [prompt.agent for prompt in model.prompts] == ["front", "back"]


async def test_a_model_for_each() -> None:
    cast = {"front": StrictModel(GIVE), "back": StrictModel(says("done"))}
    with driven_by(cast):
        walk = await FleetHarness(
            InMemoryGuard(fleet_of("front", "back")), {"front": FRONT, "back": BACK}
        ).go("hello")
    assert walk.answer == "done"
    with pytest.raises(AssertionError, match="no model for back"), driven_by({"front": StrictModel()}):
        await BACK(turn(agent="back"))


async def test_who_had_no_model_is_named_at_the_blocks_end_whatever_became_of_it() -> None:
    cast = {"front": StrictModel(GIVE), "bakc": StrictModel(says("done"))}
    walk = FleetHarness(InMemoryGuard(fleet_of("front", "back")), {"front": FRONT, "back": BACK})
    with pytest.raises(AssertionError, match="no model for back; there are front, bakc"), driven_by(cast):
        await walk.go("hello")
    assert (walk.status, set(walk.broke)) == ("escalated", {"bug"})


async def test_what_is_left_over_fails_the_block() -> None:
    with pytest.raises(AssertionError, match="left over"), driven_by(StrictModel(says("done"))):
        pass


async def test_outside_of_the_block_it_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESH_MODEL", raising=False)
    with driven_by(StrictModel()):
        pass
    with pytest.raises(Exception, match="has no script"):
        await BACK(turn(agent="back"))


async def test_the_turn_of_the_holder_has_what_was_handed_over() -> None:
    court = InMemoryGuard(fleet_of("front", "back"))
    with pytest.raises(NotDecided):
        turn_in(court)
    court.submit("hello")
    court.move(turn_in(court).transfer("back", summary="go on", facts={"tier": "gold"}))
    given = turn_in(court)
    assert (given.agent, given.facts["tier"]) == ("back", "gold")
    with driven_by(StrictModel(says("done"))):
        assert await BACK(given) == Complete(answer="done")


async def test_the_turn_of_the_holder_has_the_prices_of_its_request() -> None:
    prices = {"big": Price(input=1, output=2)}
    budget = Policy(budget=Budget(nano_dollars=10**9))
    court = InMemoryGuard(fleet_of("back"), {"default": budget}, prices=prices)
    court.submit("hello")
    given = turn_in(court)
    assert given.execution.prices == prices
    costly = Reply(text="done", usage=Usage(tokens=1, model_calls=1), tokens=Tokens(input=MTOK), model="big")
    with driven_by(StrictModel(costly)):
        assert await BACK(given) == Complete(answer="done")
    assert given.execution.report.usage.nano_dollars == 1
