"""The chain: whatever is changed in a stored event is found."""

import hashlib
import json
from typing import Any

import pytest

from protocol.domain import hash_chain
from protocol.domain.hash_chain import Break, breaks
from protocol.domain.ledger import fold_bodies
from protocol.wire import codec
from tests.unit.protocol.test_ledger import eventful

BODIES = tuple(eventful().bodies)
NAMES = [f"{n}-{json.loads(body)['type']}" for n, body in enumerate(BODIES)]


def canonical(value: Any) -> bytes:
    """Canonical JSON by the standard library, for a second opinion."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def second_opinion(body: bytes) -> str:
    """Compute a digest from the words of the module's docstring alone."""
    event = json.loads(body)

    def form(node: Any, path: str) -> Any:
        if isinstance(node, list):
            return [form(item, f"{path}.{index}") for index, item in enumerate(node)]
        if not isinstance(node, dict):
            return node
        return {
            key: hashlib.sha256(
                hashlib.sha256(event["salt"].encode() + b"\x1f" + f"{path}.{key}".encode()).digest()
                + b"\x1f"
                + canonical(value)
            ).hexdigest()
            if key in hash_chain.COMMITTED
            else form(value, f"{path}.{key}")
            for key, value in node.items()
        }

    shown = form(event, "") | {"salt": hashlib.sha256(event["salt"].encode() + b"\x1f").hexdigest()}
    return hashlib.sha256(canonical(shown)).hexdigest()


def test_a_whole_log_has_no_breaks() -> None:
    assert breaks(BODIES) == []
    assert breaks([]) == []
    assert len({json.loads(body)["type"] for body in BODIES}) >= 14


@pytest.mark.parametrize("body", BODIES, ids=NAMES)
def test_a_digest_can_be_computed_from_its_description(body: bytes) -> None:
    assert hash_chain.digest(body) == second_opinion(body)


@pytest.mark.parametrize("body", BODIES, ids=NAMES)
def test_an_event_has_the_digest_of_the_bytes_that_are_made_from_it(body: bytes) -> None:
    assert hash_chain.digest_of(codec.decode_event(body)) == hash_chain.digest(body)


def test_a_newer_guards_field_counts_in_what_was_read() -> None:
    """What this build does not know of is in the bytes, and the next event has to vouch for it."""
    newer = BODIES[1][:-1] + b',"since":{"value":"later"}}'
    assert fold_bodies([BODIES[0], newer]).prev == hash_chain.digest(newer) != hash_chain.digest(BODIES[1])


def leaves(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in an event, and of every object and list."""
    found = [path] if path else []
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, item in items:
        found += leaves(item, (*path, key))
    return found


def other(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case list():
            return [*value, "x"]
        case dict():
            return {**value, "x": "x"}
    return "x"


def at(node: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        node = node[key]
    return node


@pytest.mark.parametrize("n", range(len(BODIES) - 1), ids=NAMES[:-1])
@pytest.mark.parametrize("how", ["changed", "removed", "added"])
def test_a_change_to_any_field_of_any_event_is_found(n: int, how: str) -> None:
    original = json.loads(BODIES[n])
    for path in leaves(original):
        tampered = json.loads(BODIES[n])
        parent, key = at(tampered, path[:-1]), path[-1]
        if how == "changed":
            parent[key] = other(parent[key])
        elif how == "removed":
            del parent[key]
        elif isinstance(parent, dict):
            parent[f"{key}_too"] = parent[key]
        else:
            parent.insert(key, parent[key])
        log = [*BODIES[:n], json.dumps(tampered).encode(), *BODIES[n + 1 :]]
        assert breaks(log), path


def test_an_event_that_is_left_out_moved_or_repeated_is_found() -> None:
    for n in range(len(BODIES) - 1):
        assert breaks([*BODIES[:n], *BODIES[n + 1 :]])
        assert breaks([*BODIES[: n + 1], *BODIES[n:]])
        assert breaks([*BODIES[:n], BODIES[n + 1], BODIES[n], *BODIES[n + 2 :]])


def test_the_last_events_own_place_is_checked() -> None:
    last = json.loads(BODIES[-1])
    for key, value in (("n", 7), ("prev", "0" * 64)):
        assert breaks([*BODIES[:-1], json.dumps({**last, key: value}).encode()])


@pytest.mark.parametrize("junk", [b"", b"{", b"[]", b"7", b'"x"', b"{}", b'{"n":1}', b"\xff"])
def test_what_cannot_be_read_is_a_break_and_not_an_error(junk: bytes) -> None:
    found = breaks([BODIES[0], junk, BODIES[2]])
    assert Break(1, "cannot be read") in found
    assert Break(2, "does not name the event before it") in found


def test_a_break_says_what_does_not_hold() -> None:
    assert breaks([BODIES[1]]) == [Break(0, "is numbered 1"), Break(0, "does not name the event before it")]


def commitments(salt: str) -> list[str]:
    """Return the commitments to one text in three places of an event."""
    event: dict[str, Any] = {"text": "yes", "facts": [{"value": "yes"}, {"value": "yes"}]}
    hash_chain._commit(event, salt.encode() + b"\x1f", "")
    return [event["text"], *(item["value"] for item in event["facts"])]


def test_equal_texts_have_different_commitments() -> None:
    """Neither the same value elsewhere in the event nor under another salt gives itself away."""
    assert len({*commitments("a"), *commitments("b")}) == 6


def test_a_value_can_be_taken_out_and_cannot_be_guessed() -> None:
    """A redacted event shows commitments, the hash of its salt, and the field salts of what it shows."""
    secret, shown, salt = "no", "Refund the order", b"5a" * 16
    event: dict[str, Any] = {"n": 1, "salt": salt.decode(), "summary": shown, "facts": [{"value": secret}]}
    field_salt = hashlib.sha256(salt + b"\x1f.summary").digest()
    taken_out = hashlib.sha256(salt + b"\x1f.facts.0.value").digest()
    redacted: dict[str, Any] = {
        "n": 1,
        "salt": hashlib.sha256(salt + b"\x1f").hexdigest(),
        "summary": hashlib.sha256(field_salt + b"\x1f" + canonical(shown)).hexdigest(),
        "facts": [{"value": hashlib.sha256(taken_out + b"\x1f" + canonical(secret)).hexdigest()}],
    }
    assert hashlib.sha256(canonical(redacted)).hexdigest() == hash_chain.digest(canonical(event))
    known = (redacted["salt"], redacted["salt"].encode(), bytes.fromhex(redacted["salt"]), field_salt)
    for root in (each.encode() if isinstance(each, str) else each for each in known):
        guessed = hashlib.sha256(root + b"\x1f.facts.0.value").digest()
        for opening in (guessed, root):
            opened = hashlib.sha256(opening + b"\x1f" + canonical(secret)).hexdigest()
            assert opened != redacted["facts"][0]["value"]


def test_the_order_of_keys_and_white_space_are_nothing() -> None:
    spaced = json.dumps(dict(reversed(json.loads(BODIES[3]).items())), indent=2).encode()
    assert hash_chain.digest(spaced) == hash_chain.digest(BODIES[3])
