"""What is made of bytes that cannot be read: the failure of their round, or no document."""

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.wire import codec
from protocol.wire.codec import DEEPEST_DOCUMENT, readable
from protocol.wire.commands import Failure, Report, ReportFailure, Usage
from protocol.wire.config import Fleet, Policy
from protocol.wire.errors import Malformed
from protocol.wire.handoff import DEEPEST
from protocol.wire.ids import TurnId
from protocol.wire.records import Card, DeadLetter, Notice, Record
from tests.certain import known

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
    assert known(found).report == Report()


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


KINDS: tuple[Any, ...] = (Card, Record, DeadLetter, Notice, Fleet, Policy, dict[str, Any], Any)


def brackets(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@given(st.binary() | st.text().map(str.encode))
@example(b"")
@example(b"\xff\xfe")
@example(b'{"name":"\\ud800","version":"1"}')
@example(brackets(5_000))
@example(b'{"a":' * 5_000 + b"1" + b"}" * 5_000)
@example(b'{"name":"x","version":"1","tools":[{"a":' + brackets(900) + b"}]}")
@example(b"1" * 5_000)
def test_no_bytes_make_it_raise(body: bytes) -> None:
    for kind in KINDS:
        found = readable(body, kind)
        if found is not None:
            msgspec.json.encode(found)


def test_what_is_nested_as_deep_as_ours_is_read_and_what_is_deeper_is_not() -> None:
    assert readable(brackets(DEEPEST_DOCUMENT), Any) is not None
    assert readable(brackets(DEEPEST_DOCUMENT + 1), Any) is None
    record = b'{"kind":"call","nonce":"n","at":1,"value":' + brackets(DEEPEST) + b"}"
    assert readable(record, Record) is not None


@pytest.mark.parametrize("text", ["[" * 500, '\\"[' * 500, "]\\\\"])
def test_brackets_in_strings_are_not_nesting(text: str) -> None:
    value: Any = {"a": text, "many": [[] for _ in range(500)]}
    assert readable(msgspec.json.encode(value), Any) == value


def test_a_number_of_any_size_is_read_and_written() -> None:
    assert readable(b'{"kind":"call","nonce":"n","at":1' + b"0" * 30 + b"}", Record) == Record(
        kind="call", nonce="n", at=10**30
    )
