"""Replies held against the schema of their question."""

from typing import Any

import pytest

from mesh.replies import ReplyInvalid, SchemaUnusable, check_reply


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        pytest.param(None, object, id="no-schema"),
        pytest.param({}, [1, {"a": None}], id="anything"),
        pytest.param({"type": "boolean"}, True, id="a-truth"),
        pytest.param({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, 7, id="within-itself"),
        pytest.param(
            {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"}, "x", id="another-draft"
        ),
    ],
)
def test_what_fits_is_let_through(schema: dict[str, Any] | None, value: Any) -> None:
    check_reply(schema, value)


def test_what_does_not_fit_is_named_by_its_place() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    with pytest.raises(ReplyInvalid, match=r"at \$\.n: 'x' is not of type 'integer'"):
        check_reply(schema, {"n": "x"})
    with pytest.raises(ReplyInvalid, match="'n' is a required property"):
        check_reply(schema, {})


def test_what_is_wrong_is_said_in_few_words() -> None:
    with pytest.raises(ReplyInvalid) as raised:
        check_reply({"type": "integer"}, "x" * 10_000)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"type": "colour"}, id="no-such-type"),
        pytest.param({"pattern": "("}, id="no-pattern"),
        pytest.param({"$ref": "http://127.0.0.1:1/elsewhere"}, id="elsewhere"),
        pytest.param({"$ref": "#/$defs/missing"}, id="nowhere"),
        pytest.param({"$ref": "#"}, id="round-and-round"),
        pytest.param({"$schema": 7}, id="no-draft"),
    ],
)
def test_a_schema_that_cannot_be_used_is_an_error_of_its_own(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaUnusable):
        check_reply(schema, "x")
