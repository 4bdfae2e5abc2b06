"""docs/protocol.md on the hash chain: followed word for word, it gives the digests that the code gives."""

import hashlib
import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from protocol.domain import hash_chain
from protocol.wire.config import Policy, policy_hash
from tests.docs.pages import codes, section, table
from tests.docs.test_protocol_page import EXAMPLES, PAGE
from tests.servers import ROOT

CHAIN = section(PAGE, "10. The hash chain")
# The algorithm as the page tells it, with nothing but the standard library.


def _names_after(label: str) -> set[str]:
    return set(codes(CHAIN.split(f"*{label}*", 1)[1].split("\n", 1)[0].split(". ", 1)[0]))


COMMITTED = _names_after("Committed fields")
PLAIN = _names_after("Plain fields")


def _canonical(value: Any) -> str:
    match value:
        case dict():
            members = sorted(value.items(), key=lambda item: item[0].encode())
            return "{" + ",".join(f"{_canonical(key)}:{_canonical(item)}" for key, item in members) + "}"
        case list():
            return "[" + ",".join(_canonical(item) for item in value) + "]"
        case float():
            return _double(value)
    return json.dumps(value, ensure_ascii=False)


def _double(value: float) -> str:
    digits, _, exponent = repr(value).partition("e")
    if not exponent:
        return digits
    if int(exponent) == -5:
        return format(Decimal(repr(value)), "f")
    return f"{digits}e{int(exponent)}"


def _field_salt(salt: str, path: str) -> bytes:
    return hashlib.sha256(salt.encode() + b"\x1f" + path.encode()).digest()


def _commitment(salt: str, path: str, value: Any) -> str:
    return hashlib.sha256(_field_salt(salt, path) + b"\x1f" + _canonical(value).encode()).hexdigest()


def _form(node: Any, salt: str, path: str = "") -> Any:
    if isinstance(node, list):
        return [_form(item, salt, f"{path}.{index}") for index, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    return {
        key: _commitment(salt, f"{path}.{key}", item)
        if key in COMMITTED
        else item
        if key in PLAIN
        else _form(item, salt, f"{path}.{key}")
        for key, item in node.items()
    }


def _digest(body: bytes) -> str:
    return hashlib.sha256(_canonical(_shown(json.loads(body))).encode()).hexdigest()


def _shown(event: Any) -> Any:
    """Return the canonical form of a whole event, before it is written."""
    return _form(event, event["salt"]) | {"salt": _field_salt(event["salt"], "").hex()}


GOLDEN = sorted((ROOT / "tests" / "golden").glob("events/v*/*.json"))


def test_the_committed_and_the_plain_fields_are_those_of_the_code() -> None:
    assert COMMITTED == hash_chain.COMMITTED
    assert PLAIN == hash_chain._PLAIN


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_the_algorithm_as_told_gives_the_digest_that_the_code_gives(file: Any) -> None:
    body = file.read_bytes()
    assert _digest(body) == hash_chain.digest(body)


def test_the_algorithm_as_told_holds_for_odd_values() -> None:
    odd: dict[str, Any] = {
        "salt": "ab",
        "x": [1.0, 1e16, 1.5e-6, 0.00001, 1e-7, 123456.789, -0.0, 5e-324, 1 << 80, True, None],
    }
    odd.update(
        {"é": '\u2028/"\\\b\f\n\r\t\x01\x7f', "\U0001f600": {}, "￿": [], "value": {"b": [1.0], "a": {}}}
    )
    odd["y"] = [[{"text": 1}], "text", {"grounds": {"text": "t"}}]
    body = json.dumps(odd).encode()
    assert _digest(body) == hash_chain.digest(body)


def test_the_worked_example_is_right() -> None:
    first, second = [block.text.encode() for block in EXAMPLES if block.kind == "stored"]
    assert hash_chain.breaks([first, second]) == []
    assert f"and its digest `{hash_chain.digest(first)}`" in CHAIN
    assert f"The second's digest is `{hash_chain.digest(second)}`" in CHAIN
    event = json.loads(first)
    shown = next(block.text for block in EXAMPLES if block.kind == "canonical")
    assert shown == _canonical(_shown(event))
    for path, value, salt, commitment in (
        [codes(cell)[0] for cell in row] for row in table(CHAIN, ".work.handoff.summary")
    ):
        assert salt == _field_salt(event["salt"], path).hex()
        assert commitment == _commitment(event["salt"], path, json.loads(value))
        assert commitment in shown


def test_each_sample_names_the_digest_of_the_sample_before_it() -> None:
    samples = [block.text.encode() for block in EXAMPLES if block.kind == "event"]
    shown = {(event["request"], event["n"]): body for body in samples if (event := json.loads(body))}
    followed = 0
    for body in samples:
        event = json.loads(body)
        before = shown.get((event["request"], event["n"] - 1))
        followed += before is not None
        assert before is None or event["prev"] == hash_chain.digest(before), event["id"]
        assert (event["n"] == 0) == (event["prev"] == hash_chain.GENESIS), event["id"]
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
