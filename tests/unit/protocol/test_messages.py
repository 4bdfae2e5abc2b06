"""What is asked for: names, summaries and ids."""

from typing import Any

import pytest

from protocol.wire.commands import (
    HANDOFF_MOVES,
    Complete,
    Failure,
    Move,
    MoveProposed,
    ReportFailure,
    UnknownMove,
    id_of,
    move_name,
    move_summary,
    submit_id,
)
from protocol.wire.ids import TurnId, proposal_id
from tests.unit.protocol.worlds import REQUEST, ask, complete, escalate, give_up, hand_back, transfer


@pytest.mark.parametrize(
    ("move", "name", "summary"),
    [
        (transfer("b", summary="look"), "transfer", "look"),
        (hand_back(), "hand_back", "found out"),
        (ask(), "ask", "which one?"),
        (escalate(), "escalate", "a person, please"),
        (complete("yes"), "complete", "yes"),
        (give_up(), "fail", "it cannot be done"),
    ],
    ids=HANDOFF_MOVES,
)
def test_every_move_has_its_name_and_one_line_that_says_what_it_wants(
    move: Move, name: str, summary: str
) -> None:
    assert (move_name(move), move_summary(move)) == (name, summary)


@pytest.mark.parametrize(
    ("answer", "summary"), [({"a": 1}, '{"a":1}'), (None, "null"), ([1, True], "[1,true]"), ("", "")]
)
def test_an_answer_that_is_no_text_is_summed_up_as_json(answer: Any, summary: str) -> None:
    assert move_summary(Complete(answer=answer)) == summary


def test_an_unknown_move_goes_by_the_name_it_came_under() -> None:
    assert (move_name(UnknownMove(name="delegate")), move_summary(UnknownMove(name="delegate"))) == (
        "delegate",
        "",
    )


def test_whatever_a_round_asks_for_has_one_id() -> None:
    turn = TurnId("t")
    move = MoveProposed(turn=turn, round=1, move=complete())
    failure = ReportFailure(turn=turn, round=1, error=Failure(code="x"))
    assert id_of(REQUEST, move) == id_of(REQUEST, failure) == proposal_id(REQUEST, "t", 1)
    assert submit_id(REQUEST) == proposal_id(REQUEST, "", 0)
