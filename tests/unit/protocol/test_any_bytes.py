"""Reading any bytes: a value or a typed error, and of an unreadable proposal the round that it speaks for."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.wire import codec
from protocol.wire.commands import Failure, MoveProposed, Report, ReportFailure, Usage
from protocol.wire.errors import Malformed, UnknownEvent
from protocol.wire.ids import TurnId
from protocol.wire.prices import Metered
from tests.unit.protocol.test_codec import BODIES, PARSERS, TRANSFER, K, said
from tests.unit.protocol.worlds import transfer


def reads(parse: Callable[[bytes], msgspec.Struct], body: bytes) -> None:
    """Read, and if it can be read, write it and read it again."""
    try:
        read = parse(body)
    except (Malformed, UnknownEvent):
        return
    assert parse(codec.encode(read)) == read


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
        st.sampled_from(["t", "transfer", "move", "done", "?"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5) | st.just("move"), inner, max_size=3)
    ),
    max_leaves=6,
)
MESSAGES: list[dict[str, Any]] = [
    {"text": "x", "facts": [K], "constraints": {"deadline": 5, "budget": {"tokens": 1}}},
    {"kind": "move", "turn": "t", "round": 0, "move": {**TRANSFER, "facts": [K], "drop": ["k"]}},
    {"kind": "move", "turn": "t", "round": 0, "move": {"move": "zap"}, "report": {"usage": {"tokens": 1}}},
    {"kind": "turn_failed", "turn": "t", "round": 0, "error": {"code": "x"}},
    {"kind": "resolve", "id": "i", "turn": "t", "facts": [K], "answer": 1},
    {"kind": "settle", "id": "i", "turn": "t", "round": 0, "outcome": "done", "result": 1},
    *map(json.loads, BODIES),
]


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: str(parse.__name__))
@settings(max_examples=150)
@given(body=st.one_of(st.binary(max_size=40), st.text(max_size=40).map(str.encode), values.map(said)))
def test_any_bytes_are_a_value_or_a_typed_error(
    parse: Callable[[bytes], msgspec.Struct], body: bytes
) -> None:
    reads(parse, body)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [found for key, item in items for found in ((*path, key), *places(item, (*path, key)))]


@st.composite
def nearly_messages(draw: st.DrawFn) -> bytes:
    """A message of ours with one or two places changed."""
    message = json.loads(json.dumps(draw(st.sampled_from(MESSAGES))))
    for _ in range(draw(st.integers(1, 2))):
        here = places(message)
        if not here:
            break
        *way, key = draw(st.sampled_from(here))
        node = message
        for step in way:
            node = node[step]
        if draw(st.booleans()):
            node[key] = draw(values)
        else:
            del node[key]
    return said(message)


@settings(max_examples=600)
@given(nearly_messages())
def test_anything_like_a_message_is_a_value_or_a_typed_error(body: bytes) -> None:
    for parse in PARSERS:
        reads(parse, body)


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: str(parse.__name__))
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b'{"text":' + b"[" * 100_000,
        b'{"text":"\xff"}',
        b'{"text":"\\ud800"}',
        b'{"kind":"move","turn":"t","round":' + b"9" * 5000 + b"}",
        b'{"kind":"move","turn":"t","round":1e400,"move":{"move":"zap"}}',
        b'{"type":"turn.failed","v":true}',
        b'{"type":["turn.failed"],"v":1}',
    ],
    ids=["empty", "null", "deep", "deeper", "no-utf8", "surrogate", "huge", "infinite", "true", "list"],
)
def test_hostile_bytes_are_typed_errors(parse: Callable[[bytes], msgspec.Struct], body: bytes) -> None:
    with pytest.raises((Malformed, UnknownEvent)):
        parse(body)


def test_a_report_reads_as_nothing_where_it_is_left_out() -> None:
    read = codec.parse_proposal(said({"kind": "move", "turn": "t", "round": 0, "move": TRANSFER}))
    assert read.report == Report()


@pytest.mark.parametrize(
    ("usage", "sound"),
    [
        (Usage(), True),
        (Usage(tokens=1 << 62), True),
        (Usage(tokens=(1 << 62) + 1), False),
        (Usage(nano_dollars=-1), False),
        (Usage(models={"m": Metered(calls=-1)}), False),
        (Usage(models={"m" * 128: Metered(calls=1)}), True),
        (Usage(models={"m" * 129: Metered(calls=1)}), False),
    ],
)
def test_a_usage_is_sound_exactly_where_a_report_of_it_can_be_read(usage: Usage, sound: bool) -> None:
    assert codec.usage_is_sound(usage) is sound
    proposal = codec.encode(
        MoveProposed(turn=TurnId("t"), round=0, move=transfer("b"), report=Report(usage=usage))
    )
    if sound:
        codec.parse_proposal(proposal)
    else:
        with pytest.raises(Malformed, match="a report"):
            codec.parse_proposal(proposal)


WRONG = Malformed("proposal: $.move")


def failed(body: bytes) -> ReportFailure | None:
    return codec.failure_of(body, WRONG)


def test_an_unreadable_proposal_that_names_turn_and_round_is_that_rounds_failure() -> None:
    found = failed(b'{"turn":"t","round":2,"move":[],"report":{"usage":{"tokens":3}}}')
    assert found == ReportFailure(
        turn=TurnId("t"),
        round=2,
        error=Failure(code="malformed", message="proposal: $.move"),
        report=Report(usage=Usage(tokens=3)),
    )


@pytest.mark.parametrize("report", ["7", '{"usage":{"tokens":-1}}', '{"usage":{"tokens":"x"}}', "null"])
def test_a_report_that_cannot_be_read_does_not_count(report: str) -> None:
    found = failed(b'{"turn":"t","round":0,"report":%s}' % report.encode())
    assert found is not None
    assert found.report == Report()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"rubbish",
        b"[]",
        b'{"turn":"t"}',
        b'{"turn":"t","round":-1}',
        b'{"turn":"a.b","round":0}',
        b"[" * 5000,
    ],
)
def test_what_names_no_round_fails_none(body: bytes) -> None:
    assert failed(body) is None


@given(st.binary() | st.text().map(str.encode))
def test_no_bytes_break_the_reading_of_what_they_speak_for(body: bytes) -> None:
    failed(body)
