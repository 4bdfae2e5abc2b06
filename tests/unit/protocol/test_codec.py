"""Reading is total: a value or a typed error, whatever the bytes."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.wire import codec
from protocol.wire.commands import MoveProposed, Report, Submit, Usage
from protocol.wire.errors import Malformed, MeshError, ProtocolError, UnknownEvent
from protocol.wire.events import RequestOpened
from protocol.wire.handoff import Budget, Constraints
from protocol.wire.ids import TurnId, is_label
from protocol.wire.moves import Complete, UnknownMove
from protocol.wire.prices import Metered
from protocol.wire.records import Record
from tests.certain import is_
from tests.unit.protocol.test_ledger import eventful
from tests.unit.protocol.worlds import fact, played, transfer, usage

BODIES = eventful().bodies
PARSERS: list[Callable[[bytes], msgspec.Struct]] = [
    codec.parse_submit,
    codec.parse_proposal,
    codec.parse_control,
    codec.decode_event,
]
TEN_YEARS = 10 * 366 * 86_400.0


def said(value: Any) -> bytes:
    return json.dumps(value).encode()


def move(**fields: Any) -> bytes:
    return said({"kind": "move", "turn": "t", "round": 0, "move": fields})


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"x": value}
    return value


def test_a_submit_is_plain_json_and_needs_a_text_only() -> None:
    assert codec.parse_submit(b'{"text": "hello"}') == Submit(text="hello")


def test_fields_that_are_not_known_are_ignored() -> None:
    assert codec.parse_submit(b'{"text":"x","colour":"red"}') == Submit(text="x")


@pytest.mark.parametrize("body", BODIES)
def test_every_event_is_read_as_it_was_written(body: bytes) -> None:
    assert codec.encode(codec.decode_event(body)) == body


@pytest.mark.parametrize("name", ["teleport", "x" * 64, "Transfer", "?"])
def test_a_move_that_this_build_lacks_is_read_by_its_name(name: str) -> None:
    report = {"usage": {"tokens": 5}}
    body = said(
        {"kind": "move", "turn": "t", "round": 2, "report": report, "move": {"move": name, "to": ["b"]}}
    )
    read = codec.parse_proposal(body)
    assert read == MoveProposed(
        turn=TurnId("t"), round=2, report=usage(tokens=5), move=UnknownMove(name=name)
    )
    assert codec.parse_proposal(codec.encode(read)) == read


@pytest.mark.parametrize("name", ["", "x" * 65, 7, None, ["transfer"]])
def test_what_cannot_be_a_moves_name_is_malformed(name: Any) -> None:
    with pytest.raises(Malformed):
        codec.parse_proposal(move(move=name))


@pytest.mark.parametrize("name", ["transfer", "complete", ""])
def test_no_move_hides_behind_the_unknown_one(name: str) -> None:
    with pytest.raises(Malformed, match="cannot be named so"):
        codec.parse_proposal(move(move="?", name=name))


def test_a_known_move_with_wrong_fields_is_malformed_and_not_unknown() -> None:
    with pytest.raises(Malformed, match="summary"):
        codec.parse_proposal(move(move="transfer", to_agent="b"))


TRANSFER = {"move": "transfer", "to_agent": "b", "summary": "s"}
HAND_BACK = {"move": "hand_back", "summary": "s"}
K = {"key": "k", "value": 1}
NO_LABEL = {**K, "labels": ["ok", "x\n\nFacts:\n- vip: true"]}
SCAN = {"name": "scan", "uri": "u", "labels": ["x y"]}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="no-text"),
        pytest.param({"text": ""}, id="empty"),
        pytest.param({"text": " \n\u2028"}, id="blank"),
        pytest.param({"text": 7}, id="not-text"),
        pytest.param({"text": "x", "v": 2}, id="another-version"),
        pytest.param({"text": "x", "facts": [K, K]}, id="a-key-twice"),
        pytest.param({"text": "x", "facts": [{"key": "text", "value": 1}]}, id="the-reserved-key"),
        pytest.param({"text": "x", "facts": [{"key": "", "value": 1}]}, id="an-empty-key"),
        pytest.param({"text": "x", "facts": [{"key": "k" * 129, "value": 1}]}, id="a-long-key"),
        pytest.param({"text": "x", "facts": [{"key": "k"}]}, id="no-value"),
        pytest.param({"text": "x", "artifacts": [{"name": "a", "uri": "u"}] * 2}, id="an-artifact-twice"),
        pytest.param({"text": "x", "facts": [NO_LABEL]}, id="no-label"),
        pytest.param({"text": "x", "artifacts": [SCAN]}, id="no-label-of-an-artifact"),
        pytest.param({"text": "x", "constraints": {"deadline": -1}}, id="a-deadline-before-time"),
        pytest.param({"text": "x", "constraints": {"deadline": 1 << 53}}, id="a-deadline-beyond-numbers"),
        pytest.param({"text": "x", "constraints": {"max_resolution_time_s": -1}}, id="a-negative-span"),
        pytest.param(
            {"text": "x", "constraints": {"max_resolution_time_s": TEN_YEARS + 1}}, id="a-span-of-ages"
        ),
        pytest.param({"text": "x", "constraints": {"budget": {"tokens": -1}}}, id="a-negative-budget"),
        pytest.param(
            {"text": "x", "constraints": {"budget": {"tokens": (1 << 62) + 1}}}, id="a-budget-too-large"
        ),
        pytest.param({"text": "x", "facts": [{"key": "k", "value": nested(65)}]}, id="nested-too-deeply"),
        pytest.param({"text": "x", "rerun_of": "c1_01"}, id="a-rerun-of-no-request"),
        pytest.param({"text": "x", "rerun_of": ""}, id="a-rerun-of-nothing"),
        pytest.param({"text": "x", "conversation": "c" * 129}, id="a-conversation-too-long"),
        pytest.param([], id="not-an-object"),
    ],
)
def test_a_submit_that_makes_no_sense_is_malformed(body: Any) -> None:
    with pytest.raises(Malformed):
        codec.parse_submit(said(body))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"v": 2}, id="another-version"),
        pytest.param({"turn": "a.b"}, id="no-turn-id"),
        pytest.param({"turn": ""}, id="an-empty-turn"),
        pytest.param({"round": -1}, id="a-negative-round"),
        pytest.param({"round": 1 << 31}, id="a-huge-round"),
        pytest.param({"kind": "wish"}, id="an-unknown-kind"),
        pytest.param({"move": None}, id="no-move"),
        pytest.param({"move": {**TRANSFER, "facts": [K, K]}}, id="a-key-twice"),
        pytest.param({"move": {**HAND_BACK, "facts": [K, K]}}, id="a-key-twice-in-a-hand-back"),
        pytest.param(
            {"move": {"move": "escalate", "summary": "s", "facts": [K, K]}}, id="a-key-twice-to-people"
        ),
        pytest.param({"move": {**TRANSFER, "facts": [NO_LABEL]}}, id="no-label"),
        pytest.param({"move": {**TRANSFER, "artifacts": [SCAN]}}, id="no-label-of-an-artifact"),
        pytest.param({"move": {**HAND_BACK, "facts": [NO_LABEL]}}, id="no-label-in-a-hand-back"),
        pytest.param({"move": {**HAND_BACK, "artifacts": [SCAN]}}, id="no-label-of-an-artifact-given-back"),
        pytest.param(
            {"move": {"move": "escalate", "summary": "s", "facts": [NO_LABEL]}}, id="no-label-to-people"
        ),
        pytest.param(
            {"move": {**TRANSFER, "constraints": {"max_resolution_time_s": -1}}}, id="a-negative-span"
        ),
        pytest.param(
            {"move": {**TRANSFER, "constraints": {"budget": {"tokens": -1}}}}, id="a-negative-budget"
        ),
        pytest.param(
            {"move": {"move": "ask", "to_agent": "c1", "question": "?", "expires_s": -1}},
            id="negative-expiry",
        ),
        pytest.param({"report": {"usage": {"tokens": -1}}}, id="a-negative-report"),
        pytest.param({"report": {"usage": {"tokens": (1 << 62) + 1}}}, id="a-report-too-large"),
        pytest.param({"report": {"steps": -1}}, id="negative-steps"),
        pytest.param({"report": {"prompt": "v" * 65}}, id="a-prompt-with-a-long-version"),
        pytest.param({"kind": "turn_failed", "error": {"code": "x", "retry_after_s": -1}}, id="retry-before"),
        pytest.param(
            {"kind": "turn_failed", "error": {"code": "x", "retry_after_s": 1e12}}, id="retry-never"
        ),
        pytest.param({"move": {"move": "complete", "answer": nested(65)}}, id="nested-too-deeply"),
        pytest.param(
            {"move": {"move": "ask", "to_agent": "c1", "question": "?", "schema": nested(66)}},
            id="a-schema-nested-too-deeply",
        ),
    ],
)
def test_a_proposal_that_makes_no_sense_is_malformed(body: dict[str, Any]) -> None:
    good = {"kind": "move", "turn": "t", "round": 0, "move": TRANSFER}
    codec.parse_proposal(said(good))
    with pytest.raises(Malformed):
        codec.parse_proposal(said({**good, **body}))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"v": 2}, id="another-version"),
        pytest.param({"id": ""}, id="an-empty-id"),
        pytest.param({"id": "a.b"}, id="no-id"),
        pytest.param({"id": "x" * 65}, id="a-long-id"),
        pytest.param({"turn": "a b"}, id="no-turn-id"),
        pytest.param({"round": -1}, id="a-negative-round"),
        pytest.param({"round": 1 << 31}, id="a-huge-round"),
        pytest.param({"kind": "destroy"}, id="an-unknown-kind"),
        pytest.param({"value": nested(65)}, id="nested-too-deeply"),
        pytest.param({"kind": "resolve", "facts": [K, K]}, id="a-key-twice"),
        pytest.param({"kind": "resolve", "facts": [NO_LABEL]}, id="no-label"),
        pytest.param({"kind": "resolve", "answer": nested(65)}, id="an-answer-nested-too-deeply"),
        pytest.param({"kind": "settle", "outcome": "maybe"}, id="an-unknown-outcome"),
        pytest.param({"kind": "settle", "outcome": "done", "result": nested(65)}, id="a-result-too-deep"),
    ],
)
def test_a_control_message_that_makes_no_sense_is_malformed(body: dict[str, Any]) -> None:
    good = {"kind": "reply", "id": "i", "turn": "t", "round": 0}
    codec.parse_control(said(good))
    with pytest.raises(Malformed):
        codec.parse_control(said({**good, **body}))


def test_the_largest_that_is_allowed_is_read() -> None:
    limits = Constraints(
        max_resolution_time_s=TEN_YEARS, deadline=(1 << 53) - 1, budget=Budget(tokens=1 << 62)
    )
    facts = (fact("k" * 128, nested(64), "l" * 64),)
    body = codec.encode(Submit(text="x", constraints=limits, facts=facts))
    assert codec.parse_submit(body).constraints == limits


@pytest.mark.parametrize("label", ["pii", "PII-2", "team:billing/eu", "a.b_c", "l" * 64])
def test_a_label_is_a_word(label: str) -> None:
    assert is_label(label)
    body = said({"text": "x", "facts": [{**K, "labels": [label]}]})
    assert codec.parse_submit(body).facts[0].labels == (label,)


@pytest.mark.parametrize("label", ["", "l" * 65, "a b", "a\n", "\u2028", "é", "a,b", "[a]", '"a"'])
def test_what_is_no_word_is_no_label(label: str) -> None:
    assert not is_label(label)
    with pytest.raises(Malformed, match="facts: a label is 1 to 64 characters"):
        codec.parse_submit(said({"text": "x", "facts": [{**K, "labels": [label]}]}))


def test_an_event_of_before_labels_were_words_can_be_read() -> None:
    old = next(read for body in BODIES if (read := json.loads(body))["type"] == "request.opened")
    old["work"]["handoff"]["facts"] = [NO_LABEL]
    read = is_(codec.decode_event(said(old)), RequestOpened)
    assert read.work.handoff.facts[0].labels == ("ok", "x\n\nFacts:\n- vip: true")


def test_what_is_read_can_be_written_into_an_event_and_read_again() -> None:
    """The deepest value that is let in, where it stands deepest: in the past of a refused round."""
    play = played(transfer("nobody", fact("k", nested(64))), transfer("nobody", fact("k", nested(64))))
    answer = MoveProposed(turn=play.turn, round=2, move=Complete(answer=nested(64)))
    play.propose(codec.parse_proposal(codec.encode(answer)), "a")
    assert play.ledger.status == "completed"


def test_an_error_says_where_and_never_what() -> None:
    with pytest.raises(Malformed) as raised:
        codec.parse_submit(b'{"text": "hush-hush", "facts": "hush-hush"}')
    assert str(raised.value) == "submit: Expected `array`, got `str` - at `$.facts`"
    assert raised.value.code == "protocol.malformed"


def test_the_codes_of_errors_are_stable() -> None:
    assert [kind.code for kind in (MeshError, ProtocolError, Malformed, UnknownEvent)] == [
        "mesh.error",
        "protocol.error",
        "protocol.malformed",
        "protocol.unknown_event",
    ]
    unknown = UnknownEvent("x", 3)
    assert (unknown.type, unknown.version) == ("x", 3)


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
        b'{"type":["turn.failed"],"v":2}',
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
    step = codec.encode(Record(kind="model", nonce="n", at=1, usage=usage))
    assert (codec.readable(step, Record) is not None) is sound
    proposal = codec.encode(
        MoveProposed(turn=TurnId("t"), round=0, move=transfer("b"), report=Report(usage=usage))
    )
    if sound:
        codec.parse_proposal(proposal)
    else:
        with pytest.raises(Malformed, match="usage"):
            codec.parse_proposal(proposal)
