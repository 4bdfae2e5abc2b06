"""Replies held against the schema of their question."""

import sys
from pathlib import Path
from typing import Any

import pytest

from mesh.agent import _reply_schema as replies
from mesh.agent._reply_schema import ReplyInvalid, ReplyUnjudged, SchemaUnusable, check_reply, check_schema


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
        pytest.param({"$schema": 7}, id="no-draft"),
    ],
)
def test_a_schema_that_cannot_be_used_is_an_error_of_its_own(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaUnusable):
        check_reply(schema, "x")


def nested(depth: int) -> Any:
    """Return lists in lists."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def multiplying(depth: int) -> dict[str, Any]:
    """Return a small schema that is judged 2^depth times."""
    twice = {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(depth)}
    return {"$ref": "#/$defs/0", "$defs": {**twice, str(depth): {"type": "string"}}}


def evaluated_again(depth: int) -> dict[str, Any]:
    """Return a small schema without references whose work doubles at each level."""
    schema: dict[str, Any] = {"unevaluatedProperties": False}
    for _ in range(depth):
        schema = {"if": schema, "unevaluatedProperties": False}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"pattern": "^(a+)+$"}, id="a-pattern-that-backtracks"),
        pytest.param({"allOf": [{"not": {"pattern": "^(a|aa)+$"}}]}, id="a-pattern-inside"),
        pytest.param(multiplying(40), id="references-that-multiply"),
        pytest.param(evaluated_again(40), id="what-is-evaluated-at-each-level-again"),
    ],
)
def test_a_schema_that_would_be_judged_for_ever_ends(
    schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "CPU_S", 1)
    with pytest.raises(ReplyUnjudged, match="more than 1 s of the processor"):
        check_reply(schema, {"a": 1} if "if" in schema else "a" * 60 + "!")


def test_items_that_are_all_compared_are_judged_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "CPU_S", 1)
    with pytest.raises(ReplyUnjudged, match="more than 1 s of the processor"):
        check_reply({"uniqueItems": True}, [{"a": n} for n in range(10_000)])


def test_judging_that_does_not_come_to_an_end_is_given_up() -> None:
    with pytest.raises(ReplyUnjudged, match=r"longer than 0\.001 s"):
        check_reply({"pattern": "^x$"}, "x", within_s=0.001)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        pytest.param({"$ref": "#"}, "x", id="round-and-round"),
        pytest.param({"items": {"$ref": "#"}}, nested(600), id="a-deep-value"),
    ],
)
def test_what_comes_to_no_verdict_lets_no_reply_through(schema: dict[str, Any], value: Any) -> None:
    with pytest.raises(ReplyUnjudged, match="nothing was sent"):
        check_reply(schema, value)


def test_a_process_that_cannot_be_started_lets_no_reply_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ReplyUnjudged, match="no process can judge it"):
        check_reply({"pattern": "^x$"}, "x")


def test_a_process_that_is_killed_lets_no_reply_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the kernel, on a machine without memory."""
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(killed))
    with pytest.raises(ReplyUnjudged, match="was ended"):
        check_reply({"pattern": "^x$"}, "x")


def test_a_pattern_that_can_be_used_is() -> None:
    schema = {"type": "object", "patternProperties": {"^n": {"type": "string", "pattern": "^[A-Z]{3}$"}}}
    check_reply(schema, {"name": "ABC"})
    with pytest.raises(ReplyInvalid, match=r"at \$\.name: 'abc' does not match"):
        check_reply(schema, {"name": "abc"})


def test_it_is_judged_where_the_caller_stands_by_nobody_elses_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mesh.py").write_text("raise SystemExit('owned')")
    (tmp_path / "jsonschema.py").write_text("raise SystemExit('owned')")
    monkeypatch.chdir(tmp_path)
    check_reply({"pattern": "^x$"}, "x")


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"type": "colour"}, id="no-such-type"),
        pytest.param({"pattern": "("}, id="no-pattern"),
        pytest.param({"properties": 7}, id="no-properties"),
        pytest.param({"$schema": 7}, id="no-draft"),
        pytest.param({"description": "x" * 20_000}, id="too-large"),
    ],
)
def test_who_asks_is_told_of_a_schema_that_nobody_can_reply_to(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaUnusable):
        check_schema(schema)


def test_who_asks_is_told_nothing_of_one_that_can_be_used() -> None:
    check_schema(None)
    check_schema({"type": "string", "pattern": "^x"})
    check_schema({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}})
