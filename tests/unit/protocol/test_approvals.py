"""An approval in the log: which effect a reply is about is the guard's word, taken from its own event."""

from typing import Any

import msgspec
import pytest

from mesh.replay.rejudge import rejudge
from protocol.wire import codec
from protocol.wire.commands import Reply
from protocol.wire.errors import Malformed
from protocol.wire.events import TurnResumed
from tests.unit.protocol.worlds import Court, ask, is_, opened, transfer

DIGEST = "qzk3yhx2r7bmmx6d3cjvd5h2ne"


def approval(**more: Any) -> Any:
    return ask(action="pay", digest=DIGEST, schema={"type": "boolean"}, **more)


def reply(court: Court, value: Any = True) -> TurnResumed:
    turn = court.holder
    return is_(court.control(Reply, sender="c1", turn=turn.id, round=turn.round, value=value), TurnResumed)


def test_a_reply_is_told_with_what_it_approves() -> None:
    court = opened()
    court.move(approval())
    assert reply(court).work.past[-1].asked == DIGEST
    assert rejudge(court.bodies).same


def test_an_approval_that_expires_is_told_with_what_was_to_be_approved() -> None:
    court = opened()
    court.move(approval(expires_s=60))
    (event,) = court.wait(60)
    past = is_(event, TurnResumed).work.past[-1]
    assert (past.how, past.asked) == ("expired", DIGEST)
    assert rejudge(court.bodies).same


@pytest.mark.parametrize("move", [ask(), ask(digest=DIGEST)], ids=["a-question", "no-action"])
def test_a_reply_to_what_is_no_approval_approves_nothing(move: Any) -> None:
    court = opened()
    court.move(move)
    assert reply(court).work.past[-1].asked == ""


def test_a_question_after_an_approval_is_a_question() -> None:
    court = opened()
    court.move(approval())
    reply(court)
    court.move(ask())
    assert [past.asked for past in reply(court).work.past] == [DIGEST, ""]
    court.move(transfer("b"))
    assert rejudge(court.bodies).same


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param({"action": "pay"}, "needs the `digest`", id="of-nothing"),
        pytest.param({"action": "pay", "digest": ""}, "needs the `digest`", id="of-an-empty-one"),
        pytest.param({"action": "x" * 129, "digest": "d"}, "at most 128", id="a-long-action"),
        pytest.param({"digest": "d" * 129}, "at most 128", id="a-long-digest"),
    ],
)
def test_an_approval_that_says_too_little_or_too_much_cannot_be_read(more: Any, said: str) -> None:
    move = {"move": "ask", "to_agent": "c1", "question": "?", **more}
    body = msgspec.json.encode({"kind": "move", "turn": "t", "round": 0, "move": move})
    with pytest.raises(Malformed, match=said):
        codec.parse_proposal(body)
