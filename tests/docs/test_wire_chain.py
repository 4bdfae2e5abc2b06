"""docs/wire/reference.md on the hash chain: its three lines are run as they stand there."""

import hashlib
import json
from typing import Any

import msgspec
import pytest

from protocol.domain.hash_chain import GENESIS, redacted
from protocol.wire.config import Policy, policy_hash
from tests.docs.pages import blocks, section
from tests.docs.test_wire_pages import EXAMPLES, PAGE
from tests.golden.make import LOGS

CHAIN = section(PAGE, "The hash chain")
LINES = next(block.text for block in blocks(CHAIN) if block.kind == "chain")
STORED = [block.text.encode() for block in EXAMPLES if block.kind == "stored"]
KEPT = sorted(LOGS.glob("*.jsonl"))


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def last_digest(lines: list[bytes]) -> str:
    """Run the page's lines. Raises AssertionError where the chain does not hold."""
    room: dict[str, Any] = {"json": json, "hashlib": hashlib, "lines": lines, "prev": GENESIS}
    exec(LINES, room)  # the page's own
    return str(room["prev"])


def test_the_chain_is_checked_in_three_lines() -> None:
    assert len(LINES.splitlines()) == 1 + 3
    assert '`prev` begins as `"0" * 64`' in CHAIN


@pytest.mark.parametrize("log", KEPT, ids=lambda file: file.stem)
def test_the_pages_lines_find_what_is_changed_in_a_log_and_nothing_else(log: Any) -> None:
    lines = log.read_bytes().splitlines()
    assert last_digest(lines) == sha256(lines[-1])
    assert last_digest([redacted(lines[0]), *lines[1:]]) == sha256(lines[-1])
    with pytest.raises(AssertionError):
        last_digest([lines[0] + b" ", *lines[1:]])
    with pytest.raises(AssertionError):
        last_digest(lines[1:])


def test_the_worked_example_is_right() -> None:
    first, second = STORED
    assert last_digest(STORED) == sha256(second)
    assert f"The first's digest is `{sha256(first)}`" in CHAIN
    assert f"The second's digest is `{sha256(second)}`" in CHAIN
    shown = next(block.text.encode() for block in EXAMPLES if block.kind == "redacted")
    assert last_digest([shown, second]) == sha256(second)
    assert json.loads(shown) == json.loads(redacted(first))


def test_each_sample_names_the_digest_of_the_sample_before_it() -> None:
    """A sample stands there with white space; stored it has none."""
    samples = [json.loads(block.text) for block in EXAMPLES if block.kind == "event"]
    shown = {(event["request"], event["n"]): event for event in samples}
    followed = 0
    for event in samples:
        before = shown.get((event["request"], event["n"] - 1))
        if before is not None:
            followed += 1
            stored = json.dumps(before, separators=(",", ":"), ensure_ascii=False).encode()
            assert event["prev"] == sha256(stored), event["id"]
        assert (event["n"] == 0) == (event["prev"] == GENESIS), event["id"]
    assert followed >= 2


def test_each_sample_shows_a_policy_as_it_is_stored_and_its_hash() -> None:
    opened = [
        event
        for block in EXAMPLES
        if block.kind in ("event", "stored") and (event := json.loads(block.text))["type"] == "request.opened"
    ]
    for event in opened:
        policy = msgspec.convert(event["policy"], Policy)
        assert event["policy"] == msgspec.to_builtins(policy)
        assert event["policy_hash"] == policy_hash(policy)
    assert len(opened) >= 2
