"""Files for `mesh eval`: what is read, what is a mistake and where, and how what came is compared."""

import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.cli.eval import _print
from mesh.errors import UsageWrong
from mesh.ops.eval_file import EvalCase, cases_in, is_part, read_cases
from mesh.ops.evals import EvalAttempt, EvalRun, judged, keep_run, last_path, last_run, run_of
from protocol.views.spending import Cost
from protocol.wire.commands import Cancel
from protocol.wire.config import Policy
from tests.unit.protocol.worlds import Play, agents, complete, escalate, fact, hand_back, transfer, usage

MALFORMED = int(os.environ.get("MESH_TEST_MALFORMED", "500"))
"""How many malformed files are tried; by hand more."""
LINES, TOML = Path("evals.jsonl"), Path("evals.toml")
GOOD: dict[str, Any] = {
    "name": "refund",
    "text": "Refund O-17",
    "to": "front",
    "intent": "refund",
    "facts": {"order": "O-17", "n": [1, {"a": None}]},
    "policy": "default",
    "expect": {
        "status": "completed",
        "answer_matches": "O-[0-9]+",
        "answer": {"cents": 25},
        "agents": ["front"],
        "forbidden_agents": ["vault"],
        "refused": ["guardrail"],
        "max_dollars": 0.02,
        "max_tokens": 900,
        "max_model_calls": 3,
        "max_hops": 2,
    },
}
AS_TOML = """
[[requests]]
name = "hours"
text = '''
When are you open?
[requests]
'''

[[requests]]
name = "refund"
text = "Refund O-17"
[requests.facts]
order = "O-17"
[requests.expect]
status = "escalated"
max_hops = 1
"""


def lines(*written: Any) -> bytes:
    return b"\n".join(json.dumps(each).encode() for each in written)


# --- reading ------------------------------------------------------------------------------------------


def test_a_line_is_a_request_with_what_should_come_of_it() -> None:
    (case,) = cases_in(lines(GOOD), LINES)
    assert (case.name, case.submit.text, case.submit.to, case.submit.intent) == (
        *("refund", "Refund O-17", "front", "refund"),
    )
    assert [each.key for each in case.submit.facts] == ["order", "n"]
    assert json.loads(msgspec.json.encode(case.expect)) == {
        name: value for name, value in GOOD["expect"].items() if name != "status"
    }


def test_toml_has_the_same_under_requests() -> None:
    first, second = cases_in(AS_TOML.encode(), TOML)
    assert (first.name, first.expect.status, second.expect.status) == ("hours", "completed", "escalated")
    assert second.submit.facts[0].value == "O-17"


@pytest.mark.parametrize(
    ("changed", "mistake"),
    [
        ({"name": " "}, "name: 1 to 128 printable characters"),
        ({"name": 7}, "Expected `str`, got `int` - at `$.name`"),
        ({"text": " "}, "submit: `text` is empty"),
        ({"to": "no name"}, "to: 'no name' is no name"),
        ({"facts": {"text": "mine"}}, "the key `text` is taken by the request's own text"),
        ({"facts": []}, "Expected `object`, got `array` - at `$.facts`"),
        ({"fact": {}}, "Object contains unknown field `fact`"),
        ({"expect": {"status": "done"}}, "Invalid enum value 'done' - at `$.expect.status`"),
        ({"expect": {"answer_matches": "("}}, "expect.answer_matches: unclosed group"),
        ({"expect": {"refused": ["tone"]}}, "Invalid enum value 'tone'"),
        ({"expect": {"max_hops": -1}}, "Expected `int` >= 0 - at `$.expect.max_hops`"),
        ({"expect": {"agents": ["a"], "forbidden_agents": ["a"]}}, "a is among `agents`, too"),
        ({"expect": {"max_cost": 1}}, "Object contains unknown field `max_cost`"),
    ],
    ids=str,
)
def test_a_mistake_is_told_with_file_and_line(changed: dict[str, Any], mistake: str) -> None:
    with pytest.raises(UsageWrong) as wrong:
        cases_in(lines({**GOOD, "name": "first"}, {**GOOD, **changed}), LINES)
    assert str(wrong.value).startswith("evals.jsonl, line 2: ")
    assert mistake in str(wrong.value)


@pytest.mark.parametrize(
    ("body", "path", "mistake"),
    [
        (b"\n\n{", LINES, "line 3: "),
        (b'{"name":"a","text":"\xff"}', LINES, "line 1: "),
        (lines(GOOD) + b"\n\n" + lines(GOOD), LINES, "line 3: 'refund' is the name of the request in line 1"),
        (b" \n", LINES, "evals.jsonl holds no request"),
        (b"", TOML, "evals.toml holds no request"),
        (b"[[requests]]\nname = ", TOML, "line 2: "),
        (b"# \xff", TOML, "line 1: it is no UTF-8"),
        (b"a = 1", TOML, "line 1: unknown at the top: 'a'"),
        (b"requests = 1", TOML, "line 1: `requests` is a list"),
        (b"[[requests]]\nname='a'\ntext='b'\n\n[[requests]]\nname=1", TOML, "line 5: Expected `str`"),
        (b"requests = [{name='a', text='b'}, {name='a', text='b'}]", TOML, "line 1: 'a' is the name of"),
        (b"x = " + b"[" * 9_000, TOML, "line 1: "),
        (b"[" * 9_000, LINES, "line 1: "),
    ],
    ids=[f"{number}" for number in range(13)],
)
def test_a_file_that_is_none_is_told_with_its_line(body: bytes, path: Path, mistake: str) -> None:
    with pytest.raises(UsageWrong) as wrong:
        cases_in(body, path)
    assert mistake in str(wrong.value)


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageWrong, match="No such file"):
        read_cases(tmp_path / "none.jsonl")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*GOOD, *GOOD["expect"], "x"]) | st.text(), inner, max_size=4)
    ),
    max_leaves=8,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        return found + [place for key, each in value.items() for place in _places(each, (*path, key))]
    return found


@st.composite
def nearly_right(draw: st.DrawFn) -> bytes:
    """A good file in which one thing is otherwise: a value, a name, or a few bytes."""
    written = json.loads(json.dumps(GOOD))
    if draw(st.booleans()):
        *above, last = draw(st.sampled_from(_places(GOOD)))
        node = written
        for key in above:
            node = node[key]
        match draw(st.sampled_from(["changed", "gone", "renamed"])):
            case "changed":
                node[last] = draw(VALUES)
            case "gone":
                del node[last]
            case _:
                node[draw(st.text(max_size=5))] = node.pop(last)
        return lines({**GOOD, "name": "first"}, written)
    body = bytearray(draw(st.sampled_from([lines({**GOOD, "name": "first"}, GOOD), AS_TOML.encode()])))
    at = draw(st.integers(0, len(body)))
    body[at : at + draw(st.integers(0, 9))] = draw(st.binary(max_size=9))
    return bytes(body)


MISTAKE = re.compile(r"evals\.(?:jsonl|toml)(?:, line [1-9][0-9]*: .+| holds no request)", re.DOTALL)


def mistake_in(body: bytes, path: Path) -> str | None:
    """Return what is said of a file; None if it is read."""
    try:
        cases_in(body, path)
    except UsageWrong as wrong:
        return str(wrong)
    return None


@given(body=st.binary(max_size=200) | VALUES.map(lambda each: lines(each)) | nearly_right())
@settings(max_examples=MALFORMED, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_whatever_a_file_holds_is_read_or_is_a_mistake_with_its_line(body: bytes) -> None:
    for path in (LINES, TOML):
        said = mistake_in(body, path)
        assert said is None or MISTAKE.fullmatch(said), said
        placed = re.search(r", line ([0-9]+): ", said or "")
        assert placed is None or int(placed[1]) <= body.count(b"\n") + body.count(b"\r") + 1


# --- comparing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "value", "is_so"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 2, "d": 3}], "e": 4}}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": None}, {}, False),
        ([1, 2], [1, 2, 3], False),
        ([1], {"0": 1}, False),
        ({}, [], False),
        (1, 1.0, True),
        (None, None, True),
        ("a", "ab", False),
    ],
)
def test_an_answer_may_have_more_fields_and_nothing_else_more(expected: Any, value: Any, is_so: bool) -> None:
    assert is_part(expected, value) is is_so


def case(**expect: Any) -> EvalCase:
    (found,) = cases_in(lines({"name": "one", "text": "help me", "expect": expect}), LINES)
    return found


def came(play: Play, **expect: Any) -> EvalAttempt:
    return judged(case(**expect), "c1_x", play.bodies)


@pytest.fixture
def ended() -> Play:
    """A request that went from `a` to `b` and back, with a refusal on the way."""
    play = Play(fleet=agents("abc"))
    play.submit()
    play.move(transfer("b"), usage(tokens=10, nano_dollars=3_000_000, model_calls=1))
    play.move(transfer("a"))
    play.move(hand_back(fact("found")))
    play.move(
        complete({"order": "O-17", "cents": 25}), usage(tokens=15, nano_dollars=4_000_000, model_calls=2)
    )
    return play


def test_what_came_as_expected_is_right(ended: Play) -> None:
    found = came(
        ended,
        status="completed",
        answer_matches='"O-[0-9]+"',
        answer={"cents": 25},
        agents=["b", "a"],
        forbidden_agents=["c"],
        refused=["cycle"],
        max_hops=2,
        max_tokens=25,
        max_dollars=0.007,
        max_model_calls=3,
    )
    assert (found.verdict, found.wrong) == ("right", ())
    assert (found.agents, found.hops, found.cost.tokens, found.refused) == (("a", "b"), 2, 25, ("cycle",))


@pytest.mark.parametrize(
    ("expect", "wrong"),
    [
        ({"status": "escalated"}, "expected escalated, came out completed"),
        ({"answer_matches": "O-18"}, 'expected an answer that matches O-18, was {"order":"O-17","cents":25}'),
        ({"answer": {"cents": 26}}, 'expected an answer with {"cents":26}, was {"order":"O-17","cents":25}'),
        ({"agents": ["a", "c"]}, "expected c to have it, was with a, b"),
        ({"forbidden_agents": ["b"]}, "expected it not to be with b"),
        ({"refused": ["depth"]}, "expected a refusal by depth, had cycle"),
        ({"max_hops": 1}, "expected at most 1 hops, took 2"),
        ({"max_tokens": 24}, "expected at most 24 tokens, took 25"),
        ({"max_model_calls": 2}, "expected at most 2 model calls, took 3"),
        ({"max_dollars": 0.006}, "expected at most 0.006 dollars, took 0.007"),
    ],
    ids=str,
)
def test_each_difference_is_told_with_both_values(ended: Play, expect: dict[str, Any], wrong: str) -> None:
    found = came(ended, **expect)
    assert (found.verdict, found.wrong) == ("wrong", (wrong,))


def test_a_request_rests_with_a_person_with_its_client_or_refused() -> None:
    play = Play()
    play.submit()
    assert came(play).verdict == "unfinished"
    play.move(escalate())
    assert came(play, status="escalated").verdict == "right"
    (wrong,) = came(play, status="asked").wrong
    assert wrong == "expected asked, came out escalated"
    play.control(Cancel, reason="too late")
    (wrong,) = came(play).wrong
    assert wrong == "expected completed, came out cancelled (by op1: too late)"
    refused = Play(policy=None)
    refused.submit()
    assert came(refused, status="refused", refused=["known_policy"]).verdict == "right"
    assert judged(case(), "c1_x", ()).verdict == "unfinished"
    assert Policy().guardrails == ()


# --- summing up ---------------------------------------------------------------------------------------


def attempt(name: str, *, right: bool = True, outcome: str = "completed") -> EvalAttempt:
    cost = Cost(nano_dollars=1_500_000, tokens=5, model_calls=1)
    wrong = () if right else ("expected this, was that",)
    return EvalAttempt(name=name, request=f"c1_{name}", outcome=outcome, wrong=wrong, cost=cost)


CASES = cases_in(lines(*({"name": name, "text": "x"} for name in ("one", "two", "three", "four"))), LINES)


def test_a_run_is_kept_and_shown_beside_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "evals.jsonl"
    assert last_run(file) is None
    first = [attempt("two", right=False), attempt("one"), attempt("three", outcome="unfinished")]
    keep_run(file, run_of(CASES, first))
    last = last_run(file)
    assert last is not None
    assert list(last.requests) == ["one", "two", "three"]
    again = [attempt("one"), attempt("two"), attempt("two", right=False), attempt("four")]
    run = run_of(CASES, again)
    assert run.verdicts == {"right": 2, "flaky": 1}
    _print(again, run, last)
    table, *rest = capsys.readouterr().out.split("two: ", 1)
    assert table.splitlines()[1:4] == [
        "one\tright\tright\t0.0015\t0.0015\t0\t0.0",
        "two\tflaky 1/2\twrong\t0.0030\t0.0015\t0\t0.0",
        "four\tright\t\t0.0015\t\t0\t0.0",
    ]
    assert rest[0].startswith("c1_two: expected this, was that\n3 requests: 2 right, 1 flaky, 0.0060 dollars")
    assert "3 requests: 1 right, 1 wrong, 1 unfinished, 0.0045 dollars" in rest[0]


def test_a_last_run_that_is_none_is_a_mistake(tmp_path: Path) -> None:
    file = tmp_path / "evals.jsonl"
    last_path(file).write_text("[]")
    with pytest.raises(UsageWrong, match=r"evals\.jsonl\.last\.json is not of a last run"):
        last_run(file)
    last_path(file).unlink()
    last_path(file).mkdir()
    with pytest.raises(UsageWrong, match=r"last\.json"):
        last_run(file)
    with pytest.raises(UsageWrong, match=r"last\.json"):
        keep_run(file, EvalRun(at=0, requests={}))
