"""Graphs of LangGraph: their models' handoffs are moves, their interrupts questions."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import MessagesState
from langgraph.types import interrupt

from mesh.adapters.langgraph import mesh_agent
from mesh.agent import Permanent
from mesh.testing import MemorySteps, turn
from protocol.wire.moves import Complete, Transfer
from tests.adapters.langgraph_script import calls, graph, look, node, script
from tests.adapters.walk import walked

# --- moves ----------------------------------------------------------------------------------------


async def test_a_handoff_is_a_move_with_its_facts() -> None:
    given = {"summary": "Refund it.", "facts": [{"key": "order", "value": 7}]}
    model = script(calls(("transfer_to_triage", given)))
    made = mesh_agent("billing", graph(model, look), handoffs=["triage"])
    move = await made(turn(agent="billing", peers=["triage", "other"]))
    assert isinstance(move, Transfer)
    assert (move.to_agent, move.summary) == ("triage", "Refund it.")
    assert [(fact.key, fact.value) for fact in move.facts] == [("order", 7)]
    assert model.offered == [["look", "transfer_to_triage"]]


async def test_moves_are_offered_to_models_with_tools_or_in_the_nodes_that_are_named() -> None:
    first, second = script("Done."), script("Done.")
    for model, offered_in in ((first, []), (second, ["agent"])):
        made = mesh_agent("billing", graph(model), handoffs=["triage"], offered_in=offered_in)
        await made(turn(agent="billing", peers=["triage"]))
    assert first.offered == [[]]
    assert second.offered == [["transfer_to_triage"]]


async def test_the_model_reads_what_is_wrong_with_a_move_and_why_one_was_refused() -> None:
    journal = MemorySteps()
    wrong, right = ("transfer_to_triage", {"summary": 7}), ("transfer_to_triage", {"summary": "It."})
    model = script(calls(wrong), calls(("look", {}), right), "I do it myself.")
    made = mesh_agent("billing", graph(model, look), handoffs=["triage"])
    move = await made(turn(agent="billing", peers=["triage"], steps=journal))
    again = await made(turn(agent="billing", peers=["triage"], steps=journal, refused=[(move, "labels")]))
    assert isinstance(again, Complete)
    assert again.answer == "I do it myself."
    mistake, together, refused = model.told
    assert "summary" in mistake
    assert "together with a move" in together
    assert "labels refused transfer to triage" in refused


async def test_a_refused_answer_goes_back_to_the_model() -> None:
    model, journal = script("Yes.", "No."), MemorySteps()
    made = mesh_agent("a", graph(model))
    move = await made(turn(agent="a", steps=journal))
    again = await made(turn(agent="a", steps=journal, refused=[(move, "size")]))
    assert isinstance(again, Complete)
    assert again.answer == "No."
    assert "size refused complete" in model.asked[-1][-1].text


# --- questions ------------------------------------------------------------------------------------


async def test_an_interrupt_in_a_tool_is_a_question_and_the_tool_runs_once() -> None:
    paid = list[int]()

    @tool
    def refund(cents: int) -> str:
        """Pay money back."""
        if not interrupt({"refund": cents})["approved"]:
            return "refused"
        paid.append(cents)
        return "refunded"

    model = script(calls(("refund", {"cents": 5})), "Done.")
    made = mesh_agent("billing", graph(model, refund), effects={"refund": "once"})
    walk = await walked(made, replies=[{"approved": True}])
    assert walk.answer == "Done."
    assert paid == [5]
    assert model.told == ["refunded"]
    assert len(model.asked) == 2
    assert '{"refund": 5}' in str(walk)


async def test_an_interrupt_in_a_node_asks_the_client() -> None:
    def think(_: MessagesState) -> dict[str, Any]:
        city = interrupt("Where to?")
        day = interrupt(f"When to {city}?")
        return {"messages": [AIMessage(f"{city} on {day}")]}

    made = mesh_agent("billing", node(think), approver="client")
    walk = await walked(made, replies=["Oslo", "Friday"])
    assert walk.answer == "Oslo on Friday"
    assert "When to Oslo?" in str(walk)


async def test_a_breakpoint_says_nothing_that_could_be_asked() -> None:
    model = script(calls(("look", {})))
    existing = graph(model, look)
    existing.interrupt_before_nodes = ["tools"]
    with pytest.raises(Permanent, match="stops at tools"):
        await mesh_agent("a", existing)(turn())
