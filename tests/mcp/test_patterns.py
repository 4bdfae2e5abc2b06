"""Patterns in a server's schemas: they are the server's to judge, and all else is still checked here."""

from typing import Any

import pytest

from mesh.agent.errors import ToolArgumentsInvalid
from mesh.mcp.server import McpTool

SLOW = "^(a+)+$"
"""Over the word below, Python's `re` would need longer than the world is old."""
WORD = "a" * 200 + "b"
DIALECTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-04/schema#",
)


def checked_by(schema: dict[str, Any]) -> McpTool:
    async def run(**arguments: Any) -> Any:
        raise AssertionError("nothing is run here")

    whole = {"type": "object", **schema}
    made = McpTool(name="t", description="T.", effect=None, fn=run, input_schema=whole, remote="t")
    made.require_sense()
    return made


TEXT = {"type": "string", "pattern": SLOW}


@pytest.mark.parametrize(
    ("schema", "given"),
    [
        pytest.param({"properties": {"x": TEXT}}, {"x": WORD}, id="of a value"),
        pytest.param({"properties": {"x": {"items": TEXT}}}, {"x": [WORD]}, id="of values in a list"),
        pytest.param({"propertyNames": TEXT}, {WORD: 1}, id="of names"),
        pytest.param({"patternProperties": {SLOW: {"type": "string"}}}, {WORD: 1}, id="of some names"),
        pytest.param(
            {"patternProperties": {SLOW: {}}, "additionalProperties": False}, {WORD: 1}, id="of all names"
        ),
        pytest.param(
            {"allOf": [{"patternProperties": {SLOW: {}}}], "unevaluatedProperties": False},
            {WORD: 1},
            id="of names looked at elsewhere",
        ),
        pytest.param(
            {"properties": {"x": {"oneOf": [TEXT, {"pattern": "b$"}]}}}, {"x": WORD}, id="of one of two"
        ),
        pytest.param({"properties": {"x": {"not": TEXT}}}, {"x": WORD}, id="that must not match"),
        pytest.param(
            {"if": {"properties": {"x": TEXT}}, "then": {"required": ["y"]}}, {"x": WORD}, id="that decides"
        ),
        pytest.param(
            {"properties": {"x": {"contains": TEXT, "maxContains": 0}}}, {"x": [WORD]}, id="of none in a list"
        ),
        pytest.param({"properties": {"x": {"pattern": r"^\p{L}+$"}}}, {"x": "1"}, id="of another dialect"),
        pytest.param(
            {
                "properties": {"more": {"$ref": "#"}, "x": TEXT},
                "$schema": "https://json-schema.org/draft/2020-12/schema",
            },
            {"more": {"more": {"x": WORD}}},
            id="of the whole in itself",
        ),
    ],
)
def test_no_pattern_is_tried(schema: dict[str, Any], given: dict[str, Any]) -> None:
    assert checked_by(schema).check(given) == given


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("given", "mistake"),
    [
        pytest.param({"x": 1}, r"\$\.x: 1 is not of type 'string'", id="of another type"),
        pytest.param({}, "'x' is a required property", id="one is missing"),
        pytest.param({"x": "a", "y": 1}, "Additional properties are not allowed", id="one too many"),
        pytest.param({"x": "a" * 21}, "is too long", id="too long"),
        pytest.param({"x": "a", "z": []}, "is not valid under any of the given schemas", id="none of two"),
    ],
)
def test_all_else_is_still_checked(dialect: str, given: dict[str, Any], mistake: str) -> None:
    made = checked_by(
        {
            "$schema": dialect,
            "properties": {
                "x": {**TEXT, "maxLength": 20},
                "z": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            },
            "required": ["x"],
            "additionalProperties": False,
        }
    )
    with pytest.raises(ToolArgumentsInvalid, match=mistake):
        made.check(given)


def test_a_parameter_may_be_called_pattern() -> None:
    made = checked_by({"properties": {"pattern": {"not": {"const": "x"}}}})
    with pytest.raises(ToolArgumentsInvalid):
        made.check({"pattern": "x"})


def test_of_many_mistakes_a_few_are_told() -> None:
    made = checked_by({"additionalProperties": {"type": "string"}})
    with pytest.raises(ToolArgumentsInvalid) as caught:
        made.check({**{f"x{n}": n for n in range(3_000)}, "y" * 50_000: 1})
    assert caught.value.mistakes[-1] == "and 2996 more"
    assert len(str(caught.value)) < 2_000
