"""Reading what strangers keep on the bus: a document of its kind, or none; never an exception."""

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.wire.codec import DEEPEST, DEEPEST_DOCUMENT, readable
from protocol.wire.config import Fleet, Policy
from protocol.wire.journal_records import Record
from protocol.wire.notices import Card, DeadLetter, Notice

KINDS: tuple[Any, ...] = (Card, Record, DeadLetter, Notice, Fleet, Policy, dict[str, Any], Any)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@given(st.binary() | st.text().map(str.encode))
@example(b"")
@example(b"\xff\xfe")
@example(b'{"name":"\\ud800","version":"1"}')
@example(nested(5_000))
@example(b'{"a":' * 5_000 + b"1" + b"}" * 5_000)
@example(b'{"name":"x","version":"1","tools":[{"a":' + nested(900) + b"}]}")
@example(b"1" * 5_000)
def test_no_bytes_make_it_raise(body: bytes) -> None:
    for kind in KINDS:
        found = readable(body, kind)
        if found is not None:
            msgspec.json.encode(found)


def test_what_is_nested_as_deep_as_ours_is_read_and_what_is_deeper_is_not() -> None:
    assert readable(nested(DEEPEST_DOCUMENT), Any) is not None
    assert readable(nested(DEEPEST_DOCUMENT + 1), Any) is None
    record = b'{"kind":"call","nonce":"n","at":1,"value":' + nested(DEEPEST) + b"}"
    assert readable(record, Record) is not None


@pytest.mark.parametrize("text", ["[" * 500, '\\"[' * 500, "]\\\\"])
def test_brackets_in_strings_are_not_nesting(text: str) -> None:
    value: Any = {"a": text, "many": [[] for _ in range(500)]}
    assert readable(msgspec.json.encode(value), Any) == value


def test_a_number_of_any_size_is_read_and_written() -> None:
    assert readable(b'{"kind":"call","nonce":"n","at":1' + b"0" * 30 + b"}", Record) == Record(
        kind="call", nonce="n", at=10**30
    )
