"""The catalogue: its wire names are for ever, and each event says who has to act on it."""

from typing import Any

import msgspec
import pytest

from protocol.wire import events
from protocol.wire.commands import Failure, MoveProposed, ReportFailure, id_of, submit_id
from protocol.wire.event import ControlEvent, Event, RoundEvent
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.ids import TurnId, proposal_id
from protocol.wire.moves import TOPOLOGIES, Complete, Move, UnknownMove
from tests.unit.protocol.worlds import REQUEST, ask, complete, escalate, give_up, hand_back, transfer

ENVELOPE = ("v", "id", "request", "n", "at", "cause", "prev", "salt", "to", "trace")


def test_every_event_class_is_in_the_union() -> None:
    defined = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)}
    assert defined - {Event, RoundEvent, ControlEvent} == set(AnyEvent.__args__)


@pytest.mark.parametrize("kind", AnyEvent.__args__, ids=type_of)
def test_an_event_is_frozen_and_begins_with_the_whole_envelope(kind: type[Event]) -> None:
    assert kind.__struct_fields__[: len(ENVELOPE)] == ENVELOPE
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    assert [name for name in ENVELOPE if not fields[name].required] == ["trace"]  # it came later
    assert kind.__struct_config__.frozen
    assert not kind.__struct_config__.forbid_unknown_fields  # a newer writer may add some
    assert kind.__doc__


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
    ids=TOPOLOGIES["handoff"],
)
def test_every_move_has_its_name_and_one_line_that_says_what_it_wants(
    move: Move, name: str, summary: str
) -> None:
    assert (move.name, move.sentence) == (name, summary)


@pytest.mark.parametrize(
    ("answer", "summary"), [({"a": 1}, '{"a":1}'), (None, "null"), ([1, True], "[1,true]"), ("", "")]
)
def test_an_answer_that_is_no_text_is_summed_up_as_json(answer: Any, summary: str) -> None:
    assert Complete(answer=answer).sentence == summary


def test_an_unknown_move_goes_by_the_name_it_came_under() -> None:
    assert (UnknownMove(name="delegate").name, UnknownMove(name="delegate").sentence) == (
        "delegate",
        "",
    )


def test_whatever_a_round_asks_for_has_one_id() -> None:
    turn = TurnId("t")
    move = MoveProposed(turn=turn, round=1, move=complete())
    failure = ReportFailure(turn=turn, round=1, error=Failure(code="x"))
    assert id_of(REQUEST, move, "a") == id_of(REQUEST, failure, "b") == proposal_id(REQUEST, "t", 1)
    assert submit_id(REQUEST) == proposal_id(REQUEST, "", 0)
