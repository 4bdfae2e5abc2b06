"""The generated contract: it is what is stored, it is valid, and it says what the code does."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from jsonschema import Draft7Validator, Draft202012Validator  # type: ignore[import-untyped]

from protocol.wire import codec, schema
from protocol.wire.commands import Doubt, Failure, MoveProposed, ReportFailure, ReportInDoubt, Settle, Submit
from protocol.wire.config import AgentEntry, BreakerEntry, Fleet, Policy, Trial
from protocol.wire.event import VERSION
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.freeze import FreezeEntry
from protocol.wire.handoff import Constraints
from protocol.wire.ids import AgentName, Cause, TurnId
from protocol.wire.records import Card, DeadLetter, Ended, LiveNote, Notice, NoticeError
from tests.unit.protocol.test_ledger import eventful
from tests.unit.protocol.worlds import complete, fact, give_up, hand_back, opened, transfer, usage

ROOT = Path(__file__).parents[3]
STORED = ROOT / "protocol" / "schema"
META = ROOT / "tests" / "golden" / "asyncapi" / "3.1.0.json"
JSON_SCHEMA = schema.json_schema()
ASYNCAPI = schema.asyncapi()


FAILED = {"kind": "turn_failed", "turn": "t", "round": 0, "error": {"code": "x"}}


def validator(definition: str) -> Any:
    return Draft202012Validator({"$ref": f"#/$defs/{definition}", "$defs": JSON_SCHEMA["$defs"]})


def said(message: msgspec.Struct) -> Any:
    return json.loads(codec.encode(message))


@pytest.mark.parametrize("name", sorted(schema.documents()))
def test_what_is_stored_is_what_would_be_generated(name: str) -> None:
    assert (STORED / name).read_text() == schema.documents()[name], "run `make schema`"


def test_the_json_schema_is_one() -> None:
    Draft202012Validator.check_schema(JSON_SCHEMA)


def test_every_definition_is_described_and_every_reference_leads_somewhere() -> None:
    definitions = JSON_SCHEMA["$defs"]
    for name, definition in definitions.items():
        assert name in schema.UNIONS or definition.get("description"), name
    for ref in references(JSON_SCHEMA):
        assert ref.removeprefix("#/$defs/") in definitions


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [ref for item in node.values() for ref in references(item)]
    return [ref for item in node for ref in references(item)] if isinstance(node, list) else []


def test_whatever_happens_follows_the_schema() -> None:
    validate = validator("Event")
    for event in eventful().events:
        validate.validate(said(event))


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("Submit", Submit(text="x", facts=(fact("k", None, "pii"),), constraints=Constraints(deadline=1))),
        ("Proposal", MoveProposed(turn=TurnId("t"), round=0, move=transfer("b"), report=usage(5))),
        ("Proposal", MoveProposed(turn=TurnId("t"), round=0, move=hand_back())),
        ("Proposal", MoveProposed(turn=TurnId("t"), round=0, move=complete(None))),
        ("Proposal", MoveProposed(turn=TurnId("t"), round=0, move=give_up())),
        ("Proposal", ReportFailure(turn=TurnId("t"), round=0, error=Failure(code="x", retry_after_s=1.5))),
        ("Proposal", ReportInDoubt(turn=TurnId("t"), round=0, effect=Doubt(step="0-1", action="pay"))),
        ("Control", Settle(id="i", turn=TurnId("t"), round=0, outcome="done", result=[1])),
        ("Handoff", opened().holder.work.handoff),
        ("Policy", Policy(max_depth=3, unattended_after_s=None)),
        ("Fleet", Fleet(name="f", entry=AgentName("a"), agents={"a": AgentEntry(name=AgentName("a"))})),
    ],
)
def test_what_we_write_follows_the_schema(definition: str, message: msgspec.Struct) -> None:
    validator(definition).validate(said(message))


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        pytest.param("Submit", {}, id="a-submit-without-text"),
        pytest.param("Submit", {"text": "x", "v": 2}, id="a-submit-of-another-version"),
        pytest.param("Submit", {"text": "x", "conversation": "c" * 129}, id="too-long-a-conversation"),
        pytest.param("Submit", {"text": "x", "constraints": {"deadline": -1}}, id="a-deadline-before-time"),
        pytest.param("Proposal", {**FAILED, "round": -1}, id="a-round-that-cannot-be"),
        pytest.param("Proposal", {**FAILED, "report": {"usage": {"tokens": -1}}}, id="negative-usage"),
        pytest.param(
            "Proposal", {**FAILED, "error": {"code": "x", "retry_after_s": 1e9}}, id="a-wait-beyond-ten-years"
        ),
        pytest.param("Proposal", {"kind": "move", "turn": "t", "round": 0}, id="a-proposal-without-move"),
        pytest.param("Proposal", {"kind": "wish", "turn": "t", "round": 0}, id="an-unknown-proposal"),
        pytest.param("Control", {"kind": "cancel"}, id="a-control-without-id"),
        pytest.param(
            "Control",
            {"kind": "settle", "id": "i", "turn": "t", "round": 0, "outcome": "maybe"},
            id="an-unknown-outcome",
        ),
        pytest.param("Policy", {"max_deepth": 3}, id="a-misspelled-policy-field"),
        pytest.param("Handoff", {"move": "transfer"}, id="half-a-handoff"),
    ],
)
def test_what_we_would_not_read_does_not_follow_it(definition: str, message: Any) -> None:
    assert not validator(definition).is_valid(message)


def test_v_is_the_form_of_events_and_1_of_everything_else() -> None:
    forms = {
        name: definition["properties"]["v"]["enum"]
        for name, definition in JSON_SCHEMA["$defs"].items()
        if "v" in definition.get("properties", {})
    }
    types = {type_of(kind) for kind in get_args(AnyEvent)}
    assert types <= forms.keys()
    assert forms == {name: [VERSION if name in types else 1] for name in forms}
    assert (JSON_SCHEMA["$id"], ASYNCAPI["info"]["version"]) == (
        f"urn:handoff-mesh:wire:v{VERSION}",
        f"{VERSION}.0.0",
    )


@pytest.mark.parametrize(
    ("file", "form"),
    [
        ("docs/wire/reference.md", r"number of a message's form: (\d+) of events, 1 of everything else"),
        ("docs/wire/reference.md", r"the \[form\]\(#versions\) of the event, (\d+) "),
        ("docs/wire/agent.md", r"if \(event\.v !== (\d+) "),
        ("docs/wire/agent.md", r"whose `v` is not (\d+) or"),
        ("clients/node/lib/log.js", r"export const FORM = (\d+);"),
    ],
)
def test_pages_and_clients_name_the_form_of_events(file: str, form: str) -> None:
    assert re.findall(form, (ROOT / file).read_text()) == [str(VERSION)]


def test_a_failure_without_a_mistake_follows_it() -> None:
    validator("Proposal").validate(FAILED)


def meta() -> Any:
    return Draft7Validator(json.loads(META.read_text()))


def test_the_asyncapi_document_follows_the_official_meta_schema() -> None:
    meta().validate(ASYNCAPI)


def test_every_reference_of_the_asyncapi_document_leads_somewhere() -> None:
    for ref in references(ASYNCAPI):
        node = ASYNCAPI
        for part in ref.removeprefix("#/").split("/"):
            node = node[part]
        assert isinstance(node, dict)


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("Notice", Notice(request="r", ended=Ended(why="decided"), digest="ab")),
        ("Notice", Notice(request="r", error=NoticeError(code="x", detail="y"))),
        ("DeadLetter", DeadLetter(at=1, by="g1", code="x", detail="y", subject="mesh.prop.a.r", data="eA==")),
        ("Card", Card(name="a", version="1", tools=({"name": "look"},))),
        ("LiveNote", LiveNote(v=1, turn="t", round=0, n=0, at=1, kind="step", what="tool", state="called")),
        ("BreakerEntry", BreakerEntry(state="half_open", opened_at=1, trial=Trial(Cause("c"), 2))),
        ("FreezeEntry", FreezeEntry(frozen=True, by="Ada", since=1, at=1, seq=4)),
    ],
)
def test_what_lies_beside_the_log_is_defined_by_its_type(definition: str, message: msgspec.Struct) -> None:
    written = JSON_SCHEMA["$defs"][definition]
    assert set(written["properties"]) == set(message.__struct_encode_fields__)
    required = [field.name for field in msgspec.structs.fields(message) if field.required]
    assert written["required"] == required
    validator(definition).validate(said(message))
    first = next(iter(written["properties"]))
    assert not validator(definition).is_valid(said(message) | {first: []})


def test_a_notice_has_an_error_or_an_end_and_not_both() -> None:
    notice = {"request": "r", "error": {"code": "x", "detail": "y"}, "ended": {"why": "decided"}}
    assert not validator("Notice").is_valid(notice)
    assert not validator("Notice").is_valid({"request": "r"})
