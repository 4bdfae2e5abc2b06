"""What a submit says, from the command line."""

import pytest

from mesh.cli.arguments import parse_artifacts, parse_budget, parse_facts, seconds_in
from mesh.errors import UsageWrong
from protocol.wire.handoff import Artifact, Budget


def test_a_budget_is_counted_in_whole_units() -> None:
    assert parse_budget([]) is None
    assert parse_budget(["dollars=0.50", "tokens=20000", "model_calls=0"]) == Budget(
        nano_dollars=500_000_000, tokens=20_000, model_calls=0
    )
    assert parse_budget(["dollars=0.000000001"]) == Budget(nano_dollars=1)


@pytest.mark.parametrize(
    "said",
    [
        *("5", "euros=5", "dollars=", "dollars=-1", "dollars=0.0000000001"),
        *("tokens=1.5", "tokens=nan", "tokens=inf", "tokens=1e999999", "tokens=4611686018427387905"),
    ],
)
def test_what_is_no_budget_is_wrong_usage(said: str) -> None:
    with pytest.raises(UsageWrong, match=r"budget|amount"):
        parse_budget([said])


def test_one_kind_of_budget_is_said_once() -> None:
    with pytest.raises(UsageWrong, match="two budgets of tokens"):
        parse_budget(["tokens=1", "tokens=2"])


def test_an_artifact_is_a_name_and_where_it_lies() -> None:
    assert parse_artifacts(["scan=s3://b/x?y=1"]) == (Artifact(name="scan", uri="s3://b/x?y=1"),)
    for wrong in (["scan"], ["=x"], ["scan="], ["a=1", "a=2"]):
        with pytest.raises(UsageWrong, match="artifact"):
            parse_artifacts(wrong)


def test_a_span_is_seconds() -> None:
    assert [seconds_in(each) for each in ("90s", "10m", "2h", "1d")] == [90, 600, 7200, 86_400]
    for wrong in ("0s", "10", "2026-11-21", "-1s", "1.5h"):
        with pytest.raises(UsageWrong, match="span"):
            seconds_in(wrong)


def test_facts_are_text_unless_marked_as_json() -> None:
    given = parse_facts(["name=Ada=Eve", "n:=3", "list:=[1]", "empty="])
    assert {fact.key: fact.value for fact in given} == {"name": "Ada=Eve", "n": 3, "list": [1], "empty": ""}
    assert parse_facts([]) == ()


@pytest.mark.parametrize("wrong", [["name"], ["=x"], [":=1"], ["n:=three"], ["a=1", "a=2"]])
def test_a_wrong_fact_is_a_matter_of_usage(wrong: list[str]) -> None:
    with pytest.raises(UsageWrong):
        parse_facts(wrong)
