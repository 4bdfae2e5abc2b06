"""The moves as tools: their schemas, and the intents of whom they go to."""

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from mesh.agent.tools import ToolArgumentsInvalid
from mesh.agent.turn import Turn
from mesh.model.moves import MoveTools
from mesh.model.port import ToolCall
from mesh.testing import turn
from protocol.events import Work
from protocol.fleet import AgentEntry, Fleet
from protocol.handoff import Handoff
from protocol.ids import AgentName, TurnId
from protocol.messages import Transfer

A, B = AgentName("a"), AgentName("b-2")


def turn_with_picky_peer() -> Turn:
    fleet = Fleet(
        name="test",
        entry=A,
        agents={"a": AgentEntry(name=A), "b-2": AgentEntry(name=B, intents=("x", "y"), description="Picky.")},
        human=True,
    )
    handoff = Handoff(move="submit", from_agent=AgentName("c"), to_agent=A, summary="s")
    return Turn(
        "c_01ARZ3NDEKTSV4RRFFQ69G5FAV",
        Work(turn=TurnId("t"), round=0, handoff=handoff, path=(A,), depth=0),
        fleet,
    )


def test_every_move_has_a_schema_that_is_one() -> None:
    for spec in MoveTools(turn(peers=["b", "c-3"], path=["first", "agent"])).specs:
        Draft202012Validator.check_schema(spec.schema)
        assert spec.schema["additionalProperties"] is False
        assert spec.description


def test_an_intent_is_one_that_the_peer_takes() -> None:
    moves = MoveTools(turn_with_picky_peer())
    given = {"summary": "s", "intent": "y"}
    move = moves.read(ToolCall("1", "transfer_to_b-2", given))
    assert isinstance(move, Transfer)
    assert (move.to_agent, move.intent) == ("b-2", "y")
    with pytest.raises(ToolArgumentsInvalid, match="intent"):
        moves.read(ToolCall("1", "transfer_to_b-2", {**given, "intent": "z"}))


def test_a_peer_without_intents_takes_any() -> None:
    moves = MoveTools(turn(peers=["b"]))
    move = moves.read(ToolCall("1", "transfer_to_b", {"summary": "s", "intent": "whatever"}))
    assert isinstance(move, Transfer)
    assert move.intent == "whatever"


def test_a_summary_is_one_line() -> None:
    moves = MoveTools(turn(peers=["b"]))
    move = moves.read(ToolCall("1", "transfer_to_b", {"summary": "two\n lines"}))
    assert isinstance(move, Transfer)
    assert move.summary == "two lines"


def test_of_a_key_that_is_said_twice_the_last_one_counts() -> None:
    facts = [{"key": "k", "value": 1}, {"key": "k", "value": 2}]
    move = MoveTools(turn(peers=["b"])).read(ToolCall("1", "transfer_to_b", {"summary": "s", "facts": facts}))
    assert isinstance(move, Transfer)
    assert [fact.value for fact in move.facts] == [2]
