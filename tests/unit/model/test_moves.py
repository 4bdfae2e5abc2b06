"""The moves as tools: their schemas, the intents of whom they go to, and what the guard could not read."""

import datetime as dt
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import BaseModel

from mesh.agent._executor import encode_or_fail
from mesh.agent.errors import ToolArgumentsInvalid, ToolsUnusable
from mesh.agent.turn import Turn
from mesh.local.in_memory import turn_of
from mesh.model.arguments import answer_form
from mesh.model.moves import MoveTools
from mesh.model.port import ToolCall
from mesh.testing import turn
from protocol.wire.commands import MoveProposed
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.event_parts import Assignment
from protocol.wire.handoff import Artifact, Budget, Constraints, Fact, Handoff
from protocol.wire.ids import HUMAN, AgentName, TurnId
from protocol.wire.moves import Ask, Complete, Transfer
from tests.certain import is_

A, B = AgentName("a"), AgentName("b-2")


def turn_with_picky_peer() -> Turn:
    fleet = Fleet(
        name="test",
        entry=A,
        agents={"a": AgentEntry(name=A), "b-2": AgentEntry(name=B, intents=("x", "y"), description="Picky.")},
        human=True,
    )
    handoff = Handoff(move="submit", from_agent=AgentName("c"), to_agent=A, summary="s")
    return turn_of(
        "c_01ARZ3NDEKTSV4RRFFQ69G5FAV",
        Assignment(turn=TurnId("t"), round=0, handoff=handoff, path=(A,), depth=0),
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
    move = is_(moves.read(ToolCall("1", "transfer_to_b-2", given)), Transfer)
    assert (move.to_agent, move.intent) == ("b-2", "y")
    with pytest.raises(ToolArgumentsInvalid, match="intent"):
        moves.read(ToolCall("1", "transfer_to_b-2", {**given, "intent": "z"}))


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


BRINGING = {"transfer_to_b": "summary", "hand_back": "reason", "escalate": "reason"}


@pytest.mark.parametrize("name", BRINGING)
@pytest.mark.parametrize(
    ("brought", "why"),
    [
        pytest.param({"key": "k" * 129, "value": 1}, "1 to 128 characters", id="a long key"),
        pytest.param({"key": "k", "value": nested(65)}, "64 lists and objects", id="nested too deeply"),
        pytest.param({"key": "k", "value": 1, "labels": ["a b"]}, "a label is 1 to 64", id="no label"),
        pytest.param({"key": "k", "value": float("nan")}, "finite", id="no number"),
        pytest.param({"key": "k", "value": [{"x": float("-inf")}]}, "finite", id="no number deep inside"),
        pytest.param({"key": "k", "value": "\ud800"}, "surrogates", id="half a character"),
    ],
)
def test_what_the_guard_could_not_read_is_told_to_the_model(
    name: str, brought: dict[str, Any], why: str
) -> None:
    moves = MoveTools(turn(peers=["b"], path=["first", "agent"]))
    call = ToolCall("1", name, {BRINGING[name]: "s", "facts": [brought]})
    with pytest.raises(ToolArgumentsInvalid, match=why):
        moves.read(call)


def test_what_is_read_is_sound() -> None:
    """The largest that is let through, and numbers as they were said."""
    value = [2**70, -0.5, 1e308, True, None, {"k": nested(61)}]
    facts = [{"key": "k" * 128, "value": value, "labels": ["l" * 64]}]
    move = MoveTools(turn(peers=["b"])).read(ToolCall("1", "transfer_to_b", {"summary": "s", "facts": facts}))
    proposal = MoveProposed(turn=TurnId("t"), round=0, move=move)
    assert encode_or_fail(proposal)[0] is proposal


def test_a_label_of_an_old_log_is_not_brought_again() -> None:
    """Labels stay with their key by themselves, so that the model is not blamed for what it did not say."""
    old = Fact(key="email", value="a@example.com", labels=("two words",))
    moves = MoveTools(turn(peers=["b"], facts=[old]), labels={"email": ("pii",)})
    move = is_(moves.read(ToolCall("1", "transfer_to_b", {"summary": "s"})), Transfer)
    assert move.facts == (Fact(key="email", value="a@example.com", labels=("pii",)),)


def test_a_transfer_says_artifacts_and_constraints_as_a_handoff_has_them() -> None:
    given = {
        "summary": "s",
        "artifacts": [{"name": "scan", "uri": "s3://b/scan.pdf", "size": 7, "labels": ["pii"]}],
        "constraints": {
            "max_resolution_time_s": 60,
            "allowed_actions": ["look"],
            "budget": {"tokens": 500},
            "must_carry": ["order"],
        },
    }
    move = is_(MoveTools(turn(peers=["b"])).read(ToolCall("1", "transfer_to_b", given)), Transfer)
    assert move.artifacts == (Artifact(name="scan", uri="s3://b/scan.pdf", size=7, labels=("pii",)),)
    assert move.constraints == Constraints(
        max_resolution_time_s=60, allowed_actions=("look",), budget=Budget(tokens=500), must_carry=("order",)
    )


@pytest.mark.parametrize(
    "constraints",
    [
        pytest.param({"max_resolution_time_s": 0}, id="no time"),
        pytest.param({"budget": {"tokens": -1}}, id="a debt"),
        pytest.param({"budget": {"nano_dollars": 1 << 70}}, id="more than an amount can be"),
        pytest.param({"deadline": "soon"}, id="a field that a model does not set"),
    ],
)
def test_constraints_that_the_guard_could_not_read_are_told_to_the_model(constraints: dict[str, Any]) -> None:
    with pytest.raises(ToolArgumentsInvalid):
        MoveTools(turn(peers=["b"])).read(
            ToolCall("1", "transfer_to_b", {"summary": "s", "constraints": constraints})
        )


@pytest.mark.parametrize(
    ("name", "given", "field", "read"),
    [
        pytest.param("transfer_to_b", {"intent": "whatever"}, "intent", "whatever", id="any-intent"),
        pytest.param("transfer_to_b", {"summary": "two\n lines"}, "summary", "two lines", id="one-line"),
        pytest.param(
            "transfer_to_b",
            {"facts": [{"key": "k", "value": 1}, {"key": "k", "value": 2}]},
            "facts",
            (Fact(key="k", value=2),),
            id="of-a-key-that-is-said-twice-the-last",
        ),
        pytest.param(
            "hand_back",
            {"reason": "found", "artifacts": [{"name": "scan", "uri": "s3://b/scan.pdf"}]},
            "artifacts",
            (Artifact(name="scan", uri="s3://b/scan.pdf"),),
            id="artifacts-of-a-hand-back",
        ),
    ],
)
def test_what_a_move_says_is_read_as_it_is_meant(name: str, given: Any, field: str, read: Any) -> None:
    moves = MoveTools(turn(peers=["b"], path=["first", "agent"]))
    default = {"summary": "s"} if name == "transfer_to_b" else {}
    assert getattr(moves.read(ToolCall("1", name, default | given)), field) == read


def test_a_question_goes_to_the_client_or_to_people_with_the_schema_of_its_reply() -> None:
    moves = MoveTools(turn_with_picky_peer())
    schema = {"type": "string", "enum": ["red", "blue"]}
    move = moves.read(ToolCall("1", "ask", {"question": "which?", "schema": schema, "expires_s": 60}))
    assert move == Ask(to_agent=AgentName("c"), question="which?", schema=schema, expires_s=60)
    move = moves.read(ToolCall("1", "ask", {"question": "may I?", "of": "human"}))
    assert move == Ask(to_agent=HUMAN, question="may I?")


def test_where_there_are_no_people_nobody_can_ask_them() -> None:
    moves = MoveTools(turn(human=False))
    with pytest.raises(ToolArgumentsInvalid, match="of"):
        moves.read(ToolCall("1", "ask", {"question": "may I?", "of": "human"}))


class Flight(BaseModel):
    number: str
    on: dt.date


def test_an_answer_has_the_form_that_the_agent_says() -> None:
    moves = MoveTools(turn(), output_type=list[Flight])
    move = moves.read(ToolCall("1", "complete", {"answer": [{"number": "LH1", "on": "2026-11-22"}]}))
    assert move == Complete(answer=[{"number": "LH1", "on": "2026-11-22"}])
    with pytest.raises(ToolArgumentsInvalid, match=r"answer\.0\.on"):
        moves.read(ToolCall("1", "complete", {"answer": [{"number": "LH1", "on": "tomorrow"}]}))


@pytest.mark.parametrize(
    ("output_type", "answer"), [(None, "There."), (list[Flight], [{"number": "LH1", "on": "2026-11-22"}])]
)
def test_an_answer_leaves_what_the_model_names_if_the_agent_remembers(output_type: Any, answer: Any) -> None:
    seat = {"key": "seat", "value": "4A"}
    moves = MoveTools(turn(), labels={"seat": ("pii",)}, output_type=output_type, remembers=True)
    move = moves.read(ToolCall("1", "complete", {"answer": answer, "remember": [seat]}))
    assert move == Complete(answer=answer, remember=(Fact(key="seat", value="4A", labels=("pii",)),))
    assert moves.read(ToolCall("1", "complete", {"answer": answer})) == Complete(answer=answer)
    plain = MoveTools(turn(), output_type=output_type)
    with pytest.raises(ToolArgumentsInvalid, match="remember"):
        plain.read(ToolCall("1", "complete", {"answer": answer, "remember": [seat]}))


@pytest.mark.parametrize("schema", [{"type": "colour"}, {"pattern": "("}])
def test_a_question_by_whose_schema_no_reply_can_be_judged_goes_back_to_the_model(schema: Any) -> None:
    with pytest.raises(ToolArgumentsInvalid, match="schema: not a JSON Schema"):
        MoveTools(turn()).read(ToolCall("1", "ask", {"question": "which?", "schema": schema}))


def test_an_answer_without_a_schema_is_no_form() -> None:
    with pytest.raises(ToolsUnusable, match="the answer's type has no JSON schema"):
        answer_form(Turn)
