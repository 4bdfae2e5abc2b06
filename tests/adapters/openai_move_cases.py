"""Moves and approvals of agents of the OpenAI SDK: more cases of `test_openai_agents.py`."""

from typing import Any

from pydantic import BaseModel

from mesh.adapters.openai_agents import mesh_agent
from mesh.testing import MemorySteps, turn
from protocol.wire.moves import Complete, Deliver, Transfer
from tests.adapters.openai_kit import calls, says, script, sdk, told
from tests.adapters.walk import walked


async def a_handoff_to_the_mesh_is_a_move_with_its_facts() -> None:
    given = {"summary": "Refund it.", "facts": [{"key": "order", "value": 7}]}
    model = script(calls("transfer_to_triage", given))
    made = mesh_agent("billing", sdk.Agent("x", model=model), handoffs=["triage"])
    move = await made(turn(agent="billing", peers=["triage", "other"]))
    assert isinstance(move, Transfer)
    assert (move.to_agent, move.summary) == ("triage", "Refund it.")
    assert [(fact.key, fact.value) for fact in move.facts] == [("order", 7)]
    assert [tool.name for tool in model.calls[0].tools] == ["transfer_to_triage"]


async def a_handoff_inside_the_sdk_stays_in_the_turn_and_its_agents_calls_are_steps() -> None:
    journal, seen = MemorySteps(), list[str]()

    @sdk.function_tool
    def find() -> str:
        seen.append("found")
        return "here"

    model = script(calls("transfer_to_finder", {}), calls("find", {}), says("Found."))
    finder = sdk.Agent("finder", model=model, tools=[find])
    front = sdk.Agent("front", model=model, handoffs=[finder])
    finder.handoffs = [sdk.handoff(front)]
    made = mesh_agent("a", front, effects={"find": "once"}, moves=["ask"])
    for _ in range(2):
        move = await made(turn(steps=journal))
        assert isinstance(move, Complete)
        assert move.answer == "Found."
    assert seen == ["found"]
    assert len(model.calls) == 3


async def the_model_reads_what_is_wrong_with_a_move_and_why_one_was_refused() -> None:
    journal = MemorySteps()
    model = script(
        calls("transfer_to_triage", {"summary": 7}),
        calls("transfer_to_triage", {"summary": "It."}, 2),
        says("I do it myself."),
    )
    made = mesh_agent("billing", sdk.Agent("x", model=model), handoffs=["triage"])
    move = await made(turn(agent="billing", peers=["triage"], steps=journal))
    again = await made(turn(agent="billing", peers=["triage"], steps=journal, refused=[(move, "labels")]))
    assert isinstance(again, Complete)
    assert again.answer == "I do it myself."
    wrong, refused = told(model)
    assert "summary" in wrong
    assert "labels refused transfer to triage" in refused


async def a_question_suspends_the_turn_and_its_reply_is_the_calls_result() -> None:
    model = script(calls("ask", {"question": "Which?"}), says("Thanks."))
    walk = await walked(
        mesh_agent("billing", sdk.Agent("x", model=model), moves=["ask"]), replies=["The red"]
    )
    assert walk.answer == "Thanks."
    assert told(model) == ['"The red"']


async def a_refused_answer_goes_back_to_the_model() -> None:
    model, journal = script(says("Yes."), says("No.")), MemorySteps()
    made = mesh_agent("a", sdk.Agent("x", model=model))
    move = await made(turn(agent="a", steps=journal))
    again = await made(turn(agent="a", steps=journal, refused=[(move, "size")]))
    assert isinstance(again, Complete)
    assert again.answer == "No."
    assert "size refused complete" in model.calls[-1].input[-1]["content"]


async def an_output_type_is_the_form_of_the_answer() -> None:
    class Refund(BaseModel):
        cents: int

    model = script(says('{"cents": 5}'), says('{"cents": 5}'))
    made = mesh_agent("a", sdk.Agent("x", model=model, output_type=Refund))
    move = await made(turn(agent="a"))
    assert isinstance(move, Complete)
    assert move.answer == {"cents": 5}
    delivery = await made(turn(agent="a", topology="supervised", task="refund"))
    assert isinstance(delivery, Deliver)
    assert [(fact.key, fact.value) for fact in delivery.facts] == [("answer", {"cents": 5})]


# --- approvals ------------------------------------------------------------------------------------


async def an_approval_is_a_question_about_this_very_call() -> None:
    async def is_large(_: Any, arguments: dict[str, Any], __: str) -> bool:
        return bool(arguments["cents"] > 1)

    for wanted in (True, is_large):
        paid = list[int]()

        @sdk.function_tool(needs_approval=wanted)
        def refund(cents: int) -> str:
            paid.append(cents)  # noqa: B023 - called within this round of the loop
            return "refunded"

        model = script(calls("refund", {"cents": 5}), says("Done."))
        existing = sdk.Agent("x", model=model, tools=[refund])
        walk = await walked(mesh_agent("billing", existing, effects={"refund": "once"}), replies=[True])
        assert walk.answer == "Done."
        assert paid == [5]
        assert 'billing asks for approval: refund {"cents":5}' in str(walk)


async def the_model_reads_a_no() -> None:
    @sdk.function_tool(needs_approval=True)
    def refund(cents: int) -> str:
        raise AssertionError("not approved")

    model = script(calls("refund", {"cents": 5}), says("Sorry."))
    existing = sdk.Agent("x", model=model, tools=[refund])
    walk = await walked(mesh_agent("billing", existing, approver="client"), replies=[False])
    assert walk.answer == "Sorry."
    assert "did not approve refund" in told(model)[0]
