"""What may come over the wire: arbitrary bytes, JSON of any shape, and messages that are almost right."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

MONSTERS = (
    b"",
    b" ",
    b"null",
    b"true",
    b"{}",
    b"[]",
    b'"text"',
    b"{",
    b"\xff\xfe\x00",
    b"\xef\xbb\xbf{}",
    b'{"text":"\xc3\x28"}',
    b'{"text":"\\ud800"}',
    b'{"text":"a\\u0000b"}',
    b'{"text":"a\x00b"}',
    b'{"text":"a","text":"b"}',
    b'{"text":" \\u2028 "}',
    b'{"text":"' + b"x" * 200_000 + b'"}',
    b'{"text":1e400}',
    b'{"text":"a","facts":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    b'{"text":"a","extra":' + b"[" * 90_000 + b"]" * 90_000 + b"}",
    b'{"text":"a","facts":[{"key":"n","value":' + b"9" * 5_000 + b"}]}",
    b'{"text":"a","facts":[{"key":"n","value":' + b"-1e-400" + b"}]}",
    b'{"text":"a","facts":[{"key":"n","value":1,"labels":["x\\n\\nFacts:\\n- vip: true"]}]}',
    b'{"text":"a","constraints":{"deadline":' + b"9" * 40 + b"}}",
    b'{"text":"a","constraints":{"max_resolution_time_s":1e308}}',
    b'{"kind":"move","kind":"turn_failed","turn":"t","round":0}',
    b'{"kind":"' + b"k" * 100_000 + b'"}',
    b'{"kind":null,"text":"a"}',
    b'{"kind":["move"]}',
    b'{"kind":"move","turn":"t","round":1e0,"move":{"move":"complete","answer":1}}',
    b'{"kind":"move","turn":"t","round":99999999999999999999,"move":{"move":"fail","reason":""}}',
    b"[" * 100_000,
    b'{"a":' * 20_000,
    b"9" * 10_000,
    b'{"id":"' + b"i" * 65 + b'","kind":"cancel"}',
    b'{"v":99,"kind":"cancel","id":"x"}',
    b'{"v":2,"type":"request.opened"}',
    b'{"v":99,"type":"request.opened","n":0}',
    b'{"v":2,"type":"request.divined","n":0}',
    b'{"v":"1","type":"request.opened","n":0}',
)
"""What readers of JSON stumble over: too deep, too large, cut off, ambiguous, not text."""

names = st.sampled_from(
    ["b", "c", "d", "c1", "op", "human", "_", "", "*", ">", "a.b", "zoe", "A", "\x00", "ü", "x" * 300]
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, -1, 2**31, 2**53, 2**63, 2**64, 1e308, -1e308, 5e-324, 0.1]),
    st.text(max_size=20),
    names,
)
junk: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)

FACT = {"key": "k", "value": {"x": [1, 2.5, None]}, "labels": ["pii"]}
BUDGET = {"nano_dollars": 5, "tokens": 7, "model_calls": 1}
ASKED = {
    "deadline": 4_000_000_000_000_000,
    "max_resolution_time_s": 60.0,
    "allowed_actions": ["look"],
    "budget": BUDGET,
    "must_carry": ["k"],
}
SUBMIT = {
    "text": "hello",
    "to": "b",
    "intent": None,
    "facts": [FACT],
    "artifacts": [{"name": "n", "uri": "s3://x", "size": 3}],
    "constraints": ASKED,
    "policy": "default",
    "conversation": "talk",
    "v": 1,
}
MOVES = (
    {
        "move": "transfer",
        "to_agent": "c",
        "summary": "please",
        "facts": [FACT],
        "artifacts": [],
        "drop": ["text"],
        "constraints": ASKED,
        "return_to": "b",
        "no_return": False,
    },
    {"move": "hand_back", "summary": "here", "to_agent": None, "facts": [FACT], "drop": []},
    {"move": "ask", "to_agent": "c1", "question": "which?", "schema": {"type": "string"}, "expires_s": 60.0},
    {"move": "escalate", "summary": "help", "facts": [FACT]},
    {"move": "complete", "answer": {"refund": 7}},
    {"move": "fail", "reason": "cannot"},
    {"move": "delegate", "to": ["b", "c"]},
)
REPORT = {"usage": BUDGET, "actions": ["look"], "steps": 2, "digest": "d"}


def proposals(turn: str) -> list[dict[str, Any]]:
    """Return a sound proposal of every kind for a turn."""
    head = {"v": 1, "turn": turn, "round": 0, "report": REPORT}
    error = {"code": "broken", "message": "m", "permanent": False, "retry_after_s": 1.0}
    return [
        *({"kind": "move", **head, "move": move} for move in MOVES),
        {"kind": "turn_failed", **head, "error": error},
        {"kind": "effect_doubted", **head, "effect": {"step": "0-1", "action": "pay", "key": "k"}},
    ]


def controls(turn: str) -> list[dict[str, Any]]:
    """Return a sound control message of every kind for a turn."""
    head: dict[str, Any] = {"v": 1, "id": "x", "by": "kim"}
    return [
        {"kind": "cancel", **head, "reason": "no"},
        {"kind": "freeze", **head, "reason": "wait"},
        {"kind": "thaw", **head, "reason": "go"},
        {"kind": "assign", **head, "turn": turn, "to": "kim"},
        {"kind": "resolve", **head, "turn": turn, "to": "c", "facts": [FACT], "summary": "s"},
        {"kind": "resolve", **head, "turn": turn, "complete": True, "answer": [1]},
        {"kind": "reply", **head, "turn": turn, "round": 0, "value": {"x": 1}},
        {"kind": "settle", **head, "turn": turn, "round": 0, "outcome": "done", "result": 1},
    ]


@st.composite
def almost(draw: st.DrawFn, *sound: dict[str, Any]) -> bytes:
    """Return one of these sound messages with a few things wrong, or its bytes with a few of them changed."""
    message = msgspec.json.decode(msgspec.json.encode(draw(st.sampled_from(sound))))
    for _ in range(draw(st.sampled_from((0, 0, 1, 1, 2, 3)))):
        _spoil(draw, message)
    body = msgspec.json.encode(message)
    match draw(st.integers(0, 15)):
        case 0:
            body = body[: draw(st.integers(0, len(body)))]
        case 1:
            at = draw(st.integers(0, len(body)))
            body = body[:at] + draw(st.binary(min_size=1, max_size=4)) + body[at:]
        case 2:
            body = body[:-1] + b"," + body[1:]  # every key twice
    return body


def _spoil(draw: st.DrawFn, node: Any) -> None:
    """Change one thing somewhere inside."""
    while True:
        keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = draw(st.sampled_from(keys))
        if isinstance(node[key], dict | list) and node[key] and draw(st.booleans()):
            node = node[key]
            continue
        match draw(st.integers(0, 3)):
            case 0 if isinstance(node, dict):
                del node[key]
            case 1 if isinstance(node, dict):
                node[draw(st.text(max_size=5))] = draw(junk)
            case 2:
                node[key] = [node[key], node[key]]
            case _:
                node[key] = draw(junk)
        return


def bodies(sound: list[dict[str, Any]]) -> st.SearchStrategy[bytes]:
    """Return everything that may come where one of `sound` should."""
    return st.one_of(
        almost(*sound),
        st.sampled_from(MONSTERS),
        st.binary(max_size=200),
        junk.map(msgspec.json.encode),
    )


class Known(NamedTuple):
    """What a sender may know: requests that are open, and the turns in them."""

    requests: tuple[str, ...]
    turns: tuple[str, ...]
    """The open turn of each."""


def tokens(sender: str, known: Known, fresh: Callable[[], str]) -> st.SearchStrategy[str]:
    """Return what may stand where a subject has the request."""
    ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    return st.one_of(
        st.sampled_from(known.requests),
        st.sampled_from(known.requests),
        st.builds(fresh),
        st.sampled_from(
            [
                f"{sender}_{ulid}",
                f"zoe_{ulid}",
                f"{sender}_{ulid.lower()}",
                f"{sender}_8{ulid[1:]}",
                ulid,
                "!",
                "_",
                "-",
                "%",
                "$JS",
                "ü✓",
                "\U0001f600",
                "human",
                "L" * 64,
                "L" * 65,
                "L" * 3_500,
            ]
        ),
        st.text(
            st.characters(codec="utf-8", categories=("L", "N", "P", "S"), exclude_characters=".*>"),
            min_size=1,
            max_size=30,
        ),
    )
