"""Forms of edges: which schemas are judged by, what does not fit them, and how the rule refuses that."""

import contextlib
import datetime as dt
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from mesh.fleet.file import FleetFileError, load_fleet, parse_fleet
from mesh.replay.rejudge import rejudge
from mesh.replay.whatif import compare
from protocol.domain.breaker import Permit
from protocol.domain.recorded import Other
from protocol.wire.documents import DocumentInvalid, read_fleet
from protocol.wire.events import HandoffAdmitted, MoveRefused
from protocol.wire.forms import MOST_FORM_BYTES, FormInvalid, _read, read_form
from protocol.wire.handoff import Rule
from protocol.wire.ids import AgentName
from tests.certain import is_
from tests.unit.protocol.happened import refused
from tests.unit.protocol.oracle.audit import Auditor
from tests.unit.protocol.worlds import Play, agent, agents, fact, hand_back, transfer


class Item(BaseModel):
    sku: str
    count: int = 1


class RefundRequest(BaseModel):
    order: str = Field(min_length=2)
    cents: int = Field(gt=0, description="Of a euro.")
    why: Literal["broken", "late"]
    bought: dt.date | None = None
    items: list[Item] = []
    rate: float = 1.0
    tags: dict[str, int] = {}


SCHEMA = RefundRequest.model_json_schema()
GOOD: dict[str, Any] = {"order": "O-17", "cents": 25, "why": "late"}


# --- what is judged by --------------------------------------------------------------------------------


def test_the_schema_of_a_pydantic_model_is_a_form() -> None:
    more = {"items": [{"sku": "cup"}], "bought": None, "rate": 2, "tags": {"a": 1}, "text": "other facts"}
    assert read_form(SCHEMA).mistakes(GOOD | more) == []


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        ({"cents": "25"}, "cents: expected `int`, got `str`"),
        ({"cents": 25.0}, "cents: expected `int`, got `float`"),
        ({"cents": True}, "cents: expected `int`, got `bool`"),
        ({"cents": 0}, "cents: expected `int` >= 1"),
        ({"order": "O"}, "order: expected `str` of length >= 2"),
        ({"why": "secret-4711"}, "why: invalid enum value '…'"),
        ({"bought": 3}, "bought: expected `str | null`, got `int`"),
        ({"items": [{"sku": "cup"}, {"count": 1}]}, "items[1]: object missing required field `sku`"),
        ({"items": [{"sku": 7}]}, "items[0].sku: expected `str`, got `int`"),
        ({"items": {}}, "items: expected `array`, got `object`"),
        ({"rate": "much"}, "rate: expected `float`, got `str`"),
        ({"tags": {"a": "b"}}, "tags[...]: expected `int`, got `str`"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named_by_its_place_and_never_by_its_value(wrong: Any, mistake: str) -> None:
    assert read_form(SCHEMA).mistakes({**GOOD, **wrong}) == [mistake]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"enum": ["x"]}, "secret's"),
        ({"enum": ["x"]}, "secret` - at `$.b"),
        ({"enum": [1, 2]}, 4711),
        ({"type": "array", "items": {"enum": ["x"]}}, ['"secret"']),
        ({"type": "object", "properties": {}, "additionalProperties": False}, {"secret-4711": 1}),
        ({"type": "object", "properties": {}, "additionalProperties": False}, {"secret` - at `$[0].b": 1}),
    ],
)
def test_no_quoting_gets_a_value_into_a_mistake(schema: Any, value: Any) -> None:
    """A refusal goes to people and to agents that may not see the value."""
    (mistake,) = read_form({"properties": {"a": schema}}).mistakes({"a": value})
    assert mistake.startswith("a")
    assert "secret" not in mistake
    assert "4711" not in mistake


def test_all_mistakes_are_named_and_what_the_giver_may_not_see_is_none() -> None:
    form = read_form(SCHEMA)
    assert form.mistakes({"cents": "x"}) == [
        "cents: expected `int`, got `str`",
        "order: is missing",
        "why: is missing",
    ]
    assert form.mistakes({"cents": 1}, hidden={"order", "why"}) == []


@pytest.mark.parametrize(
    ("schema", "mistake"),
    [
        (
            {"properties": {"a": {"type": "string", "pattern": "(a+)+"}}},
            "properties.a.pattern: guards do not",
        ),
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "properties.a.uniqueItems: guards"),
        ({"properties": {"a": {"not": {}}}}, "properties.a.not: guards do not judge by it"),
        ({"if": {}}, "if: guards do not judge by it"),
        ({"type": "array"}, "type: a form is an object"),
        ({"additionalProperties": False}, "additionalProperties: other facts may always go along"),
        ({"properties": {"a": {"$ref": "https://example.org/a"}}}, "properties.a.$ref: it names nothing"),
        ({"properties": {"b": {"$ref": "#/$defs/A"}}}, "properties.b.$ref: it names nothing"),
        (
            {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"items": {}, "type": "array"}}},
            "",
        ),
        (
            {
                "properties": {"a": {"$ref": "#/$defs/A"}},
                "$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/A"}}},
            },
            "properties.a.items.$ref: A refers to itself",
        ),
        ({"properties": {"a": {"type": "strng"}}}, "properties.a.type: no such type"),
        ({"properties": {"b": {"type": ["string", 3]}}}, "properties.b.type: no such type"),
        ({"properties": {"a": {"type": "integer", "minimum": "x"}}}, "properties.a: `ge` must be"),
        ({"properties": {"a": {"type": "string", "minLength": -1}}}, "properties.a: `min_length` must be"),
        ({"properties": {"a": {"enum": [1.5]}}}, "properties.a.enum: texts, whole numbers and null"),
        ({"properties": {"a": {"enum": []}}}, "properties.a.enum: a list of values"),
        ({"properties": {"a": {"enum": [1 << 63]}}}, "properties.a: Integer values > (2**63 - 1)"),
        ({"properties": {"a": {"type": "number", "minimum": 10**400}}}, "properties.a: "),
        ({"properties": {"c": {"type": []}}}, "properties.c.type: no such type"),
        (
            {"properties": {"a": {"type": "object", "properties": {'x"y': {}}}}},
            "properties.a: Renamed field names must not contain",
        ),
        ({"properties": {"a": {"anyOf": []}}}, "properties.a.anyOf: a list of schemas"),
        ({"properties": {"a": {"allOf": [{}, {}]}}}, "properties.a.allOf: a list of schemas"),
        (
            {"properties": {"a": {"anyOf": [{"type": "object", "required": [each]} for each in "xy"]}}},
            "properties.a: If a type union contains multiple Struct types",
        ),
        ({"properties": {"a": False}}, "properties.a: a table"),
        ({"properties": ["a"]}, "properties: a table"),
        ({"required": "a"}, "required: a list of names"),
        ({"properties": {"a": {"default": "x" * MOST_FORM_BYTES}}}, f"bytes of at most {MOST_FORM_BYTES}"),
        ({"properties": {"a": {"default": object()}}}, "it is no JSON"),
    ],
    ids=lambda each: each[:48] if isinstance(each, str) else "",
)
def test_a_form_says_nothing_that_is_not_judged(schema: Any, mistake: str) -> None:
    if not mistake:
        read_form(schema)
        return
    with pytest.raises(FormInvalid) as wrong:
        read_form(schema)
    assert mistake in str(wrong.value)


def test_definitions_that_refer_to_others_twice_are_read_once_each() -> None:
    """Otherwise a few lines would take for ever: 2 to the power of their number."""
    depth = 30
    levels = {
        f"D{n}": {"type": "object", "properties": {key: {"$ref": f"#/$defs/D{n + 1}"} for key in "xy"}}
        for n in range(depth)
    }
    schema = {
        "properties": {"a": {"$ref": "#/$defs/D0"}},
        "$defs": {**levels, f"D{depth}": {"type": "integer"}},
    }
    form = read_form(schema)
    value: Any = "no number"
    for _ in range(depth):
        value = {"y": value}
    assert form.mistakes({"a": value}) == [f"a{'.y' * depth}: expected `int`, got `str`"]


def test_a_form_in_many_layers_is_a_form_or_a_mistake_however_deep_its_reader_is_called() -> None:
    schema: Any = True
    for _ in range(330):
        schema = {"anyOf": [schema]}

    def read(deeper: int) -> Any:
        return read(deeper - 1) if deeper else read_form({"properties": {"a": schema}})

    for deeper in range(0, 840, 20):
        _read.cache_clear()
        with contextlib.suppress(FormInvalid):
            read(deeper)


# --- the rule -----------------------------------------------------------------------------------------


def world(form: Any = SCHEMA, **more: Any) -> Play:
    """Return a play in which `a` hands `b` what has a form."""
    fleet = agents("abcd") | more.pop("fleet", {})
    play = Play(fleet=fleet, carries={AgentName("a"): {AgentName("b"): form}}, **more)
    play.submit()
    return play


def sound(play: Play) -> None:
    """Require that the oracle has no complaint, and that the log alone gives the same verdicts."""
    auditor = Auditor()
    for event in play.events:
        auditor.follow(event, play.heard.get(event.cause))
    assert auditor.found == []
    assert rejudge(play.bodies).same


def facts_of(**given: Any) -> list[Any]:
    return [fact(key, value) for key, value in given.items()]


def test_a_transfer_in_another_form_is_refused_and_one_in_the_form_is_admitted() -> None:
    play = world()
    found = refused(play.move(transfer("b", *facts_of(order="O-17", cents="25"))))
    assert found.rule == Rule.FORM
    assert found.detail == (
        "what a hands to b has another form: cents: expected `int`, got `str`; why: is missing"
    )
    assert found.numbers["mistakes"] == ["cents: expected `int`, got `str`", "why: is missing"]
    assert found.hint == "facts as this edge carries them: bought, cents, items, order, rate, tags, why"
    event = is_(play.move(transfer("b", *facts_of(**GOOD))), HandoffAdmitted)
    assert event.grounds is not None
    assert event.grounds.form == SCHEMA
    sound(play)


def test_what_was_carried_before_counts() -> None:
    play = world({"required": ["k", "text"]})
    play.move(transfer("c", fact("k")))
    play.move(hand_back(fact("new")))
    is_(play.move(transfer("b")), HandoffAdmitted)
    sound(play)


def test_a_form_is_for_its_own_edge_alone() -> None:
    play = world({"required": ["k"]})
    is_(play.move(transfer("c")), HandoffAdmitted)
    is_(play.move(transfer("b")), HandoffAdmitted)
    event = is_(play.move(hand_back()), HandoffAdmitted)
    assert event.grounds is not None
    assert event.grounds.form is None
    sound(play)


def test_what_its_giver_may_not_see_is_let_pass() -> None:
    play = Play(
        carries={
            AgentName("a"): {
                AgentName("b"): {"required": ["ssn"], "properties": {"ssn": {"type": "integer"}}}
            }
        }
    )
    play.submit(facts=(fact("ssn", "a text", "pii"),))
    is_(play.move(transfer("b")), HandoffAdmitted)
    sound(play)


def test_the_fallback_gets_what_fits_the_edge_that_was_named() -> None:
    fleet = {"b": agent("b", fallback="c")}
    play = world({"required": ["k"]}, fleet=fleet, breakers={"b": Permit("open")})
    assert refused(play.move(transfer("b"))).rule == Rule.AGENT_AVAILABLE
    event = is_(play.move(transfer("b", fact("k"))), HandoffAdmitted)
    assert (event.to, event.instead_of) == ("c", "b")
    sound(play)


def test_many_mistakes_are_counted() -> None:
    play = world({"required": [f"key{n}" for n in range(9)]})
    found = refused(play.move(transfer("b")))
    assert found.detail.endswith("key4: is missing; and 4 more")


def test_a_form_of_a_newer_guard_refuses_nothing_in_a_replay() -> None:
    play = world({"required": []})
    is_(play.move(transfer("b")), HandoffAdmitted)
    play.bodies[-1] = play.bodies[-1].replace(b'"form":{"required":[]}', b'"form":{"pattern":"x"}')
    assert b'"pattern"' in play.bodies[-1]
    assert [each for each in rejudge(play.bodies).differences if each.n == 1] == []


def test_another_fleet_with_a_form_is_tried_on_what_happened() -> None:
    play = Play(fleet=agents("ab"))
    play.submit()
    play.move(transfer("b"))
    fleet = read_fleet(
        b'{"name":"f","entry":"a","human":true,"agents":{"a":{"name":"a"},"b":{"name":"b"}},'
        b'"carries":{"a":{"b":{"required":["k"]}}}}'
    )
    found = compare(play.bodies, Other(fleet=fleet))
    assert "form" in str(found)
    assert is_(play.events[-1], HandoffAdmitted)


# --- the fleet file -----------------------------------------------------------------------------------

FLEET = """
name = "shop"
entry = "front"
[agents.front]
[agents.billing]
"""


def test_a_fleet_file_has_a_form_or_names_its_file(tmp_path: Path) -> None:
    inline = (
        f'{FLEET}[agents.front.carries.billing]\nrequired = ["order"]\nproperties.order.type = "string"\n'
    )
    form = {"required": ["order"], "properties": {"order": {"type": "string"}}}
    assert parse_fleet(inline).fleet.carries == {"front": {"billing": form}}
    (tmp_path / "refund.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "mesh.toml").write_text(f'{FLEET}[agents.front.carries]\nbilling = "refund.json"\n')
    assert load_fleet(tmp_path).fleet.carries == {"front": {"billing": SCHEMA}}


@pytest.mark.parametrize(
    ("lines", "mistake"),
    [
        ('billing = "none.json"', "agents.front.carries.billing: none.json: No such file or directory"),
        ('billing = "text.json"', "agents.front.carries.billing: text.json is no JSON: "),
        (
            'billing = "list.json"',
            "agents.front.carries.billing: list.json holds no form, which is an object",
        ),
        ("billing = { pattern = 1 }", "agents.front.carries.billing: pattern: guards do not judge by it"),
        ("nobody = {}", "agents.front.carries.nobody: 'nobody' is no other agent of this fleet"),
        ("front = {}", "agents.front.carries.front: 'front' is no other agent of this fleet"),
        ("billing = 7", "agents.front.carries.billing"),
    ],
)
def test_a_mistake_in_a_form_is_told_with_its_place(tmp_path: Path, lines: str, mistake: str) -> None:
    (tmp_path / "text.json").write_text("order")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "mesh.toml").write_text(f"{FLEET}[agents.front.carries]\n{lines}\n")
    with pytest.raises(FleetFileError) as wrong:
        load_fleet(tmp_path)
    assert mistake in str(wrong.value)


def test_a_text_alone_names_no_files() -> None:
    with pytest.raises(FleetFileError, match=r"refund\.json holds no form"):
        parse_fleet(f'{FLEET}[agents.front.carries]\nbilling = "refund.json"\n')


def test_a_document_with_such_a_form_is_none() -> None:
    with pytest.raises(DocumentInvalid, match=r"agents\.a\.carries\.b: if: guards do not"):
        read_fleet(
            b'{"name":"f","entry":"a","agents":{"a":{"name":"a"},"b":{"name":"b"}},'
            b'"carries":{"a":{"b":{"if":{}}}}}'
        )


def test_the_form_is_in_no_event_of_another_edge() -> None:
    play = world()
    play.move(transfer("c"))
    assert b'"form"' not in play.bodies[-1]
    is_(play.move(transfer("b")), HandoffAdmitted)
    play = world()
    is_(play.move(transfer("b")), MoveRefused)
    assert b'"form"' in play.bodies[-1]
