"""Forms of questions: what is typed into one is the value that its schema asks for."""

from typing import Any

import pytest

from mesh.agent._reply_schema import check_reply
from mesh.errors import UsageWrong
from mesh.ui.people import Field, field_for, value_in

ORDER = {
    "type": "object",
    "required": ["sum", "why", "urgent"],
    "properties": {
        "sum": {"type": "number", "minimum": 0},
        "why": {"type": "string", "title": "Reason"},
        "urgent": {"type": "boolean"},
        "kind": {"enum": ["part", "whole", None, 3]},
        "lines": {"type": "array", "items": {"type": "integer"}},
        "to": {
            "type": "object",
            "required": ["street"],
            "properties": {"street": {"type": "string"}, "no": {"type": "integer"}},
        },
    },
}


def filled(field: Field, **said: str) -> dict[str, str]:
    """Return a form whose fields are named by the keys of an object, those of inner ones after `_`."""
    form: dict[str, str] = {}
    for inner in field.fields:
        if inner.kind == "object":
            form |= filled(
                inner, **{k.partition("_")[2]: v for k, v in said.items() if k.startswith(f"{inner.key}_")}
            )
        elif inner.key in said:
            form[inner.name] = said[inner.key]
    return form


def test_an_object_is_a_form_with_a_field_for_each_part() -> None:
    field = field_for(ORDER)
    assert [(each.key, each.kind, each.required) for each in field.fields] == [
        ("sum", "number", True),
        ("why", "text", True),
        ("urgent", "yesno", True),
        ("kind", "choice", False),
        ("lines", "lines", False),
        ("to", "object", False),
    ]
    form = filled(
        field, sum="12.50", why="broken", urgent="false", kind="null", lines="1\r\n2\n", to_street="Elm"
    )
    value = value_in(form, field)
    assert value == {
        "sum": 12.5,
        "why": "broken",
        "urgent": False,
        "kind": None,
        "lines": [1, 2],
        "to": {"street": "Elm"},
    }
    check_reply(ORDER, value)


def test_what_may_be_left_out_is_left_out() -> None:
    field = field_for(ORDER)
    assert value_in(filled(field, sum="0", why="", urgent="true"), field) == {
        "sum": 0,
        "why": "",
        "urgent": True,
    }


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (None, "as you like", "as you like"),
        ({"type": "string"}, "true", "true"),
        ({"type": "integer"}, " 7 ", 7),
        ({"type": "boolean"}, "true", True),
        ({"enum": ["a", 1]}, "1", 1),
        ({"const": {"x": 1}}, '{"x":1}', {"x": 1}),
        ({"type": "array", "items": {"type": "string"}}, "a\n\nb", ["a", "b"]),
        ({"type": "array", "items": {"type": "object"}}, '[{"x":1}]', [{"x": 1}]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer"}}}, "3", 3),
    ],
)
def test_each_kind_of_value_can_be_typed(schema: Any, text: str, value: Any) -> None:
    field = field_for(schema)
    assert value_in({field.name: text}, field) == value


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer"}, "seven"),
        ({"type": "number"}, "true"),
        ({"type": "number"}, ""),
        ({"type": "boolean"}, "1"),
        ({"enum": ["a"]}, "a"),
        ({"anyOf": []}, "[" * 10_000),
        ({"type": "array", "items": {"type": "integer"}}, "1\nx"),
    ],
)
def test_what_is_no_such_value_is_named(schema: Any, text: str) -> None:
    field = field_for(schema)
    with pytest.raises(UsageWrong, match="Reply: "):
        value_in({field.name: text}, field)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        [],
        True,
        {"type": ["string", "null"]},
        {"type": "object"},
        {"type": "object", "properties": []},
        {"type": "object", "properties": {str(n): {"type": "string"} for n in range(100)}},
        {"type": "array", "items": {"type": "array", "items": {"type": "array"}}},
        {"enum": []},
        {"enum": "abc"},
    ],
)
def test_a_schema_that_no_form_is_made_for_gets_a_field_of_json(schema: Any) -> None:
    assert field_for(schema).kind == "json"


def test_rubbish_in_a_schema_makes_no_form_break() -> None:
    rubbish = {"title": 3, "description": ["x"], "minimum": "low", "maxLength": "long", "default": {"a": 1}}
    for kind in ("string", "number", "boolean"):
        assert field_for({"type": kind} | rubbish).kind in ("text", "number", "yesno")
    inner: dict[str, Any] = {"type": "string"}
    for _ in range(50):
        inner = {"type": "object", "properties": {"x": inner}}
    assert field_for(inner).kind == "object"
    assert (
        field_for({"type": "object", "properties": {"x": 3, "y": None}, "required": 7}).fields[0].kind
        == "json"
    )
