"""Instructions that are made of the turn, in prompts, in the journal and in replay."""

from typing import Any

import pytest

from mesh.agent import Agent, Turn
from mesh.model import ClaudeAgent, Reply, to
from mesh.ops.prompt import rebuild
from mesh.replay.code import Replayer
from mesh.testing import (
    FleetHarness,
    InMemoryGuard,
    MemorySteps,
    StrictModel,
    driven_by,
    fleet_of,
    says,
    turn,
)
from protocol.wire.moves import Transfer
from tests.certain import is_
from tests.unit.model.doubles import TalkingModel
from tests.unit.model.test_edges import GOOD, RefundRequest, handing, moved, told


def greeting(turn: Turn) -> str:
    return f"You work for {turn.facts['customer']}."


def made(**more: Any) -> ClaudeAgent:
    return ClaudeAgent("front", instructions=more.pop("instructions", greeting), version="1", **more)


async def test_instructions_are_made_of_the_turn() -> None:
    _, (prompt,) = await moved(made(), says("Hello."), facts={"customer": "Ada"})
    assert prompt.instructions == "You work for Ada."


async def test_instructions_that_are_no_text_are_the_codes_own_mistake() -> None:
    with pytest.raises(TypeError, match="instructions are a text, not int"):
        await moved(made(instructions=lambda turn: 7))


async def test_a_round_that_runs_again_is_told_and_offered_the_same() -> None:
    """Even if the author's code reads what changes."""
    texts, offers = iter(["Be kind.", "Be harsh."]), iter([True, False])
    agent = made(
        instructions=lambda turn: next(texts), handoffs=[to("billing", when=lambda turn: next(offers))]
    )
    steps, model = MemorySteps(), TalkingModel(handing([], "transfer_to_billing"))
    for _ in range(2):
        with driven_by(model):
            move = await agent(turn(agent="front", peers=["billing"], steps=steps))
        assert is_(move, Transfer).to_agent == "billing"
    assert [prompt.instructions for prompt in model.prompts] == ["Be kind."]


async def test_a_later_round_goes_on_where_the_text_is_the_same() -> None:
    agent, steps = made(handoffs=["billing"]), MemorySteps()
    about: dict[str, Any] = {"agent": "front", "peers": ["billing"], "steps": steps}
    about["facts"] = {"customer": "Ada"}
    model = TalkingModel(handing([]), says("Then no."))
    with driven_by(model):
        move = await agent(turn(**about))
        await agent(turn(**about, refused=[(move, "depth")]))
    assert "rule depth refused" in told(model.prompts[1])


async def played(agent: Agent, *replies: Reply) -> FleetHarness:
    guard = InMemoryGuard(fleet_of("front", "billing"))
    with driven_by(StrictModel(*replies)):
        return await FleetHarness(guard, {"front": agent}).go(
            "Hello", facts={"customer": "Ada", "order": "O-1"}
        )


async def test_the_fixed_part_of_prompts_is_one_for_all_turns_and_the_journal_has_the_text() -> None:
    """Prompts are kept for good, for all agents together: a text for each turn would fill their stream."""
    walk = await played(made(), says("Hello."))
    (fixed,) = walk.prompts.values()
    assert b"Ada" not in fixed
    assert b"transfer_to_billing" in fixed
    steps = walk.journals["front"].steps.values()
    assert any(b"You work for Ada." in body for body in steps)


def replaying(agent: Agent, walk: FleetHarness) -> Any:
    return Replayer({"front": agent}, walk.recording).replay(walk.guard.bodies)


async def test_the_same_code_replays_to_the_same_and_changed_code_is_found() -> None:
    def offered(turn: Turn) -> bool:
        return "order" in turn.facts

    handoffs = [to("billing", carries=RefundRequest, when=offered)]
    walk = await played(made(handoffs=handoffs), handing({**GOOD, "cents": "25"}), says("Hello."))
    for same in await replaying(made(handoffs=handoffs), walk):
        assert (same.result, same.difference) == ("same", None)

    def ruder(turn: Turn) -> str:
        return f"You work for that {turn.facts['customer']}."

    never = [to("billing", carries=RefundRequest, when=lambda turn: False)]
    for changed in (made(handoffs=handoffs, instructions=ruder), made(handoffs=never)):
        (found,) = await replaying(changed, walk)
        assert (found.result, found.difference.kind) == ("different", "prompt")


async def test_what_was_sent_can_be_built_again_to_the_letter() -> None:
    """Even where the code would make another text today: the journal has the one of the round."""
    walk = await played(made(), says("Hello."))
    steps = {name: body for (_, _, name), body in walk.journals["front"].steps.items()}
    today = made(instructions=lambda turn: "Another text.")
    work, fleet = walk.turns[0].execution.work, walk.guard.fleet
    with driven_by(StrictModel()):
        (sent,) = (await rebuild(today, walk.guard.request, work, fleet, steps)).sent
    assert sent.exact
    assert sent.prompt.instructions == "You work for Ada."
