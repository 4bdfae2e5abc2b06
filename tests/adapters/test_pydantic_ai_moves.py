"""Agents of Pydantic AI: their handoffs are moves, their approvals questions."""

import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    ExternalToolset,
    ToolDefinition,
)

from mesh.adapters.pydantic_ai import mesh_agent
from mesh.agent import Turn
from mesh.testing import MemorySteps, turn
from protocol.wire.moves import Complete, Deliver, Transfer
from tests.adapters.pydantic_script import Script, with_approval
from tests.adapters.walk import walked

# --- moves ----------------------------------------------------------------------------------------


async def test_a_handoff_is_a_move_with_its_facts() -> None:
    given = {"summary": "Refund it.", "facts": [{"key": "order", "value": 7}]}
    script = Script(("transfer_to_triage", given))
    move = await mesh_agent("billing", Agent(script.model), handoffs=["triage"])(
        turn(agent="billing", peers=["triage", "other"])
    )
    assert isinstance(move, Transfer)
    assert (move.to_agent, move.summary) == ("triage", "Refund it.")
    assert [(fact.key, fact.value) for fact in move.facts] == [("order", 7)]
    assert script.offered == [["transfer_to_triage"]]


async def test_the_model_reads_what_is_wrong_with_a_move_and_why_one_was_refused() -> None:
    no_words, words = ("transfer_to_triage", {"summary": 7}), ("transfer_to_triage", {"summary": "It."})
    journal, script = MemorySteps(), Script(no_words, words, "I do it myself.")
    made = mesh_agent("billing", Agent(script.model), handoffs=["triage"])
    first = turn(agent="billing", peers=["triage"], steps=journal)
    move = await made(first)
    again = turn(agent="billing", peers=["triage"], steps=journal, refused=[(move, "labels")])
    assert (await made(again)).answer == "I do it myself."  # type: ignore[union-attr]
    assert "summary" in str(script.told[0])
    assert "labels refused transfer to triage" in script.told[1]


async def test_work_goes_back_to_the_giver_that_is_among_the_handoffs() -> None:
    def given() -> Turn:
        return turn(agent="billing", peers=["triage"], path=["triage", "billing"], from_agent="triage")

    script = Script("Done.", "Done.", "Done.")
    for handoffs, moves in ((["triage"], []), ([], []), ([], ["hand_back", "ask", "escalate"])):
        await mesh_agent("billing", Agent(script.model), handoffs=handoffs, moves=moves)(given())
    assert script.offered == [["hand_back"], [], ["hand_back", "ask", "escalate"]]


async def test_a_question_suspends_the_turn_and_its_reply_is_the_calls_result() -> None:
    script = Script(("ask", {"question": "Which order?"}), "Thanks.")
    walk = await walked(mesh_agent("billing", Agent(script.model), moves=["ask"]), replies=["The red one"])
    assert walk.answer == "Thanks."
    assert script.told == ['"The red one"']


async def test_a_refused_answer_goes_back_to_the_model() -> None:
    script, journal = Script("Yes.", "No."), MemorySteps()
    made = mesh_agent("a", Agent(script.model))
    move = await made(turn(agent="a", steps=journal))
    assert (await made(turn(agent="a", steps=journal, refused=[(move, "size")]))).answer == "No."  # type: ignore[union-attr]
    assert "size refused complete" in script.told[0]


async def test_an_output_type_is_the_form_of_the_answer() -> None:
    class Refund(BaseModel):
        cents: int

    script = Script(("final_result", {"cents": 5}), ("final_result", {"cents": 5}))
    made = mesh_agent("a", Agent(script.model, output_type=Refund))
    move = await made(turn(agent="a"))
    assert isinstance(move, Complete)
    assert move.answer == {"cents": 5}
    delivery = await made(turn(agent="a", topology="supervised", task="refund"))
    assert isinstance(delivery, Deliver)
    assert [(fact.key, fact.value) for fact in delivery.facts] == [("answer", {"cents": 5})]


# --- approvals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_run_time", [False, True])
async def test_an_approval_is_a_question_about_this_very_call(at_run_time: bool) -> None:
    script, paid = Script(("refund", {"cents": 5}), "Done."), list[int]()
    existing = with_approval(script, paid, at_run_time=at_run_time)
    walk = await walked(
        mesh_agent("billing", existing, effects={"refund": "idempotent"}),
        replies=[True],
    )
    assert walk.answer == "Done."
    assert paid == [5]
    assert 'billing asks for approval: refund {"cents":5}' in str(walk)


async def test_the_model_reads_a_no() -> None:
    script, paid = Script(("refund", {"cents": 5}), "Sorry."), list[int]()
    existing = with_approval(script, paid, at_run_time=False)
    walk = await walked(mesh_agent("billing", existing, approver="client"), replies=[False])
    assert walk.answer == "Sorry."
    assert paid == []
    assert "did not approve refund" in script.told[0]


async def test_the_client_gives_the_result_of_a_tool_that_runs_elsewhere() -> None:
    script = Script(("locate", {"what": "parcel"}), "It is in Oslo.")
    elsewhere = ExternalToolset([ToolDefinition(name="locate")])
    existing = Agent(script.model, toolsets=[elsewhere], output_type=[str, DeferredToolRequests])
    walk = await walked(mesh_agent("billing", existing), replies=["Oslo"])
    assert walk.answer == "It is in Oslo."
    assert script.told == ['"Oslo"']
