"""Whatever can be read, in every stage of a request: it is decided, and nothing breaks."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.domain.admission import Late, Rejected
from protocol.domain.hash_chain import breaks
from protocol.wire import codec
from protocol.wire.commands import Freeze
from protocol.wire.config import Policy
from protocol.wire.errors import Malformed
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Budget, Constraints
from tests.unit.protocol.test_codec import places, said, values
from tests.unit.protocol.worlds import Play, agent, ask, complete, escalate, fact, opened, played, transfer


def doubted() -> Play:
    play = opened()
    play.doubt()
    return play


def below() -> Play:
    play = Play(
        fleet={"a": agent("a", clearance=("pii",)), "b": agent("b", to=("c",)), "c": agent("c")},
        policy=Policy(budget=Budget(tokens=5)),
    )
    play.submit(facts=(fact("ssn", 1, "pii"),), constraints=Constraints(must_carry=("ssn",)))
    play.move(transfer("b", no_return=True))
    play.move(transfer("c", return_to="a"))
    return play


def frozen() -> Play:
    play = below()
    play.control(Freeze)
    return play


STAGES: dict[str, Callable[[], Play]] = {
    "before it is opened": Play,
    "opened": opened,
    "suspended": lambda: played(ask()),
    "in doubt": doubted,
    "with people": lambda: played(escalate()),
    "below a seal": below,
    "frozen": frozen,
    "over": lambda: played(complete()),
}
TEMPLATES: list[dict[str, Any]] = [
    {"text": "x", "to": "a", "facts": [{"key": "k", "value": 1}], "constraints": {"must_carry": ["k"]}},
    *(
        {"kind": "move", "turn": "?", "round": 0, "report": {"usage": {"tokens": 1}}, "move": move}
        for move in (
            {
                "move": "transfer",
                "to_agent": "d",
                "summary": "s",
                "intent": "i",
                "facts": [{"key": "k", "value": 1, "labels": ["pii"]}],
                "artifacts": [{"name": "n", "uri": "u", "size": 1}],
                "drop": ["text"],
                "return_to": "a",
                "constraints": {"deadline": 1, "budget": {"tokens": 1}, "allowed_actions": ["x"]},
            },
            {"move": "hand_back", "summary": "s", "to_agent": "b", "facts": [{"key": "k", "value": 1}]},
            {"move": "ask", "to_agent": "c1", "question": "q", "expires_s": 5, "schema": {"type": "string"}},
            {"move": "escalate", "summary": "s", "facts": [{"key": "k", "value": 1}]},
            {"move": "complete", "answer": {"x": [1]}},
            {"move": "fail", "reason": "r"},
            {"move": "?", "name": "transfer"},
            {"move": "zap", "x": 1},
        )
    ),
    {"kind": "turn_failed", "turn": "?", "round": 0, "error": {"code": "x", "retry_after_s": 1}},
    {"kind": "effect_doubted", "turn": "?", "round": 0, "effect": {"step": "s", "action": "a"}},
    {"kind": "cancel", "id": "i", "reason": "r"},
    {"kind": "freeze", "id": "i"},
    {"kind": "thaw", "id": "i"},
    {"kind": "assign", "id": "i", "turn": "?", "to": "Ada"},
    {
        "kind": "resolve",
        "id": "i",
        "turn": "?",
        "to": "b",
        "again": False,
        "facts": [{"key": "k", "value": 1}],
    },
    {"kind": "resolve", "id": "i", "turn": "?", "complete": True, "answer": 1},
    {"kind": "reply", "id": "i", "turn": "?", "round": 0, "value": 1},
    {"kind": "settle", "id": "i", "turn": "?", "round": 0, "outcome": "done", "result": 1},
]


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """One of the messages above, with up to three of its places changed."""
    message: dict[str, Any] = json.loads(json.dumps(draw(st.sampled_from(TEMPLATES))))
    for _ in range(draw(st.integers(0, 3))):
        *way, key = draw(
            st.sampled_from([path for path in places(message) if path[0] not in ("turn", "kind")])
        )
        node: Any = message
        for step in way:
            node = node[step]
        node[key] = draw(values | st.sampled_from(["a", "b", "c", "human", "pii", 10**30, -1, "ssn", True]))
    return message


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES.keys())
@settings(max_examples=100)
@given(message=messages(), round_=st.integers(0, 1), who=st.sampled_from(["c1", "op1", None]))
def test_whatever_can_be_read_is_decided_without_an_error(
    stage: Callable[..., Play], message: dict[str, Any], round_: int, who: str | None
) -> None:
    play = stage()
    turn = play.ledger.holder
    if message.get("turn") == "?":
        message["turn"] = "none" if turn is None else turn.id
    if "round" in message and round_ == 0:
        message["round"] = 0 if turn is None else turn.round
    body = said(message)
    before = len(play.events)
    try:
        outcome = heard(play, body, who)
    except Malformed:
        return
    if isinstance(outcome, Late | Rejected):
        assert len(play.events) == before
    else:
        assert play.events[before:]
        assert breaks(play.bodies) == []


def heard(play: Play, body: bytes, who: str | None) -> AnyEvent | Late | Rejected:
    """Hear a message as a guard does: whoever holds the turn says what a turn says."""
    kind = json.loads(body).get("kind")
    turn = play.ledger.holder
    if kind in ("move", "turn_failed", "effect_doubted"):
        return play.propose(codec.parse_proposal(body), "a" if turn is None else turn.agent)
    if kind is None:
        return play.send_submit(codec.parse_submit(body), digest=codec.body_digest(body))
    return play.send_control(codec.parse_control(body), who or "op1")
