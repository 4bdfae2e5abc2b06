"""NaN and infinity are no numbers in JSON: each place where a value enters refuses them, with their path."""

import math
from typing import Any

import pytest

from mesh.agent._executor import encode_or_fail
from mesh.agent._steps import to_json
from mesh.agent.values import NotFinite
from mesh.testing import turn
from protocol.wire import codec
from protocol.wire.commands import MoveProposed, ReplyToAsk, ReportFailure, Submit
from protocol.wire.errors import Malformed
from protocol.wire.handoff import Fact
from protocol.wire.ids import TurnId
from protocol.wire.moves import Complete
from tests.certain import is_

VALUES = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("number", VALUES)
def test_an_author_is_told_at_the_call(number: float) -> None:
    at_work = turn(agent="x")
    with pytest.raises(ValueError, match=r"^facts\.scores\[1\]\.b: NaN and infinity"):
        at_work.transfer("y", summary="s", facts={"scores": [{"a": 1.0}, {"b": number}]})
    with pytest.raises(ValueError, match=r"^facts\.score: "):
        at_work.deliver("s", facts={"score": number})
    with pytest.raises(ValueError, match=r"^answer\.score: "):
        at_work.complete({"score": number})
    with pytest.raises(ValueError, match=r"^facts\.k: "):
        at_work.transfer("y", summary="s", facts=(Fact(key="k", value=number),))


@pytest.mark.parametrize("number", VALUES)
def test_a_move_that_was_made_by_hand_fails_the_turn_with_the_path(number: float) -> None:
    proposal = MoveProposed(turn=TurnId("t"), round=0, move=Complete(answer=[None, number]))
    failed, _ = encode_or_fail(proposal)
    assert "move.answer[1]: " in is_(failed, ReportFailure).error.message


@pytest.mark.parametrize("number", VALUES)
def test_what_clients_send_is_refused_before_it_is_stored(number: float) -> None:
    said: list[Any] = [
        Submit(text="x", facts=(Fact(key="k", value={"deep": (1, number)}),)),
        ReplyToAsk(id="r", turn=TurnId("t"), round=0, value=number),
    ]
    with pytest.raises(Malformed, match=r"^facts\[0\]\.value\.deep\[1\]: "):
        codec.encode_whole(said[0])
    with pytest.raises(Malformed, match=r"^value: "):
        codec.encode_whole(said[1])


def test_null_itself_and_every_finite_number_may_be_said() -> None:
    whole = Submit(text="x", facts=(Fact(key="k", value=[None, 0.5, -1e308, {"n": None}]),))
    assert codec.encode_whole(whole) == codec.encode(whole)


@pytest.mark.parametrize("number", VALUES)
def test_a_tools_result_is_refused_before_it_is_journaled(number: float) -> None:
    with pytest.raises(NotFinite, match=r"^result\.rows\[1\]: "):
        to_json({"rows": [None, number]})
    assert to_json({"rows": (None, 0.5)}) == {"rows": [None, 0.5]}
