"""Who may speak: fit, late, or a rejection that never becomes an event."""

from typing import Any

import pytest

from protocol.domain.admission import Late, Rejected
from protocol.domain.ledger import Ledger
from protocol.wire.commands import (
    Assign,
    Cancel,
    Control,
    Failure,
    Freeze,
    MoveProposed,
    Reply,
    ReportFailure,
    Resolve,
    Settle,
    Submit,
    Thaw,
)
from protocol.wire.events import (
    EscalationResolved,
    FactsWithheld,
    HandoffAdmitted,
    RequestCancelled,
    RequestCompleted,
    RequestOpened,
    TurnResumed,
)
from protocol.wire.ids import TurnId
from tests.unit.protocol.happened import kinds
from tests.unit.protocol.worlds import Court, ask, complete, escalate, is_, opened, played, transfer


def late(ruling: object) -> Late:
    assert isinstance(ruling, Late), ruling
    return ruling


def rejection(ruling: object) -> str:
    assert isinstance(ruling, Rejected), ruling
    assert ruling.detail
    return ruling.code


@pytest.mark.parametrize("role", ["agent", "viewer", "nobody"])
def test_only_clients_and_operators_submit(role: str) -> None:
    assert rejection(Court().hear_submit(Submit(text="x"), role=role)) == "not_allowed"


def test_operators_submit_too() -> None:
    is_(Court().hear_submit(Submit(text="x"), role="operator"), RequestOpened)


def test_the_same_submit_again_is_late_and_another_under_its_id_is_objected_to() -> None:
    court = opened()
    same = Submit(text="help me")
    assert late(court.hear_submit(same)).ended == "decided"
    assert rejection(court.hear_submit(same, digest="other")) == "request_exists"
    court.move(complete())
    assert late(court.hear_submit(same)) == Late("", 0, "completed")
    assert rejection(court.hear_submit(same, digest="other")) == "request_exists"
    assert kinds(court.events) == [RequestOpened, FactsWithheld, RequestCompleted]


def test_a_refused_submit_that_comes_again_is_late() -> None:
    court = opened(policy=None)
    assert late(court.hear_submit(Submit(text="help me"))).ended == "refused"


def move(court: Court, turn: str | None = None, round_: int | None = None) -> MoveProposed:
    holder = court.ledger.holder
    return MoveProposed(
        turn=TurnId(turn or (holder.id if holder else "none")),
        round=round_ if round_ is not None else (holder.round if holder else 0),
        move=transfer("b"),
    )


@pytest.mark.parametrize(
    ("turn", "round_", "sender", "code"),
    [
        pytest.param("never", 0, "a", "unknown_turn", id="a-turn-never-opened"),
        pytest.param(None, 0, "b", "not_the_holder", id="anothers-turn"),
        pytest.param(None, 0, "c1", "not_the_holder", id="the-client"),
        pytest.param(None, 1, "a", "unknown_round", id="a-round-not-opened"),
    ],
)
def test_a_stranger_never_writes_into_a_request(
    turn: str | None, round_: int, sender: str, code: str
) -> None:
    court = opened()
    assert rejection(court.propose(move(court, turn, round_), sender)) == code
    assert len(court.events) == 1


def test_a_proposal_for_an_unknown_request_is_objected_to() -> None:
    court = Court()
    assert rejection(court.propose(move(court), "a")) == "unknown_request"
    assert court.ledger.status == Ledger().status == "unknown"


def test_a_repeated_proposal_is_late_wherever_the_request_went_on_to() -> None:
    court = opened()
    first = move(court)
    is_(court.propose(first, "a"), HandoffAdmitted)
    assert late(court.propose(first, "a")) == Late(first.turn, 0, "ended")
    assert rejection(court.propose(first, "b")) == "not_the_holder"
    court.move(complete())
    assert late(court.propose(first, "a")).ended == "completed"


def test_an_older_round_is_late() -> None:
    court = played(transfer("nobody"))
    assert late(court.propose(move(court, round_=0), "a")) == Late(court.turn, 0, "decided")
    is_(court.propose(move(court, round_=1), "a"), HandoffAdmitted)


@pytest.mark.parametrize("state", ["suspended", "doubted", "failed", "deferred"])
def test_a_round_that_was_decided_is_late_while_the_turn_waits(state: str) -> None:
    court = opened()
    match state:
        case "suspended":
            court.move(ask())
        case "doubted":
            court.doubt()
        case "failed":
            court.fail()
        case "deferred":
            court.control(Freeze)
            court.move(transfer("b"))
    count = len(court.events)
    failure = ReportFailure(turn=court.turn, round=0, error=Failure(code="boom"))
    assert late(court.propose(move(court), "a")).ended == "decided"
    assert late(court.propose(failure, "a")).ended == "decided"
    assert len(court.events) == count


def test_a_turn_that_a_person_took_over_is_over() -> None:
    court = opened()
    turn = court.turn
    court.fail(permanent=True)
    assert late(court.propose(move(court, turn, 0), "a")).ended == "ended"
    assert rejection(court.propose(move(court), "a")) == "not_the_holder"  # it is people's now


EVERY: list[tuple[type[Control], dict[str, Any]]] = [
    (Cancel, {}),
    (Freeze, {}),
    (Thaw, {}),
    (Assign, {"turn": "t", "to": "Ada"}),
    (Resolve, {"turn": "t"}),
    (Reply, {"turn": "t", "round": 0}),
    (Settle, {"turn": "t", "round": 0, "outcome": "done"}),
]
each_control = pytest.mark.parametrize(
    ("kind", "said"), EVERY, ids=lambda value: getattr(value, "__name__", "")
)


@each_control
def test_agents_control_nothing(kind: type[Control], said: dict[str, Any]) -> None:
    court = opened()
    assert rejection(court.hear_control(court.message(kind, **said), "a")) == "not_allowed"


@each_control
def test_an_unknown_request_is_said_to_be_unknown(kind: type[Control], said: dict[str, Any]) -> None:
    court = Court()
    assert rejection(court.hear_control(court.message(kind, **said))) == "unknown_request"


@each_control
def test_a_client_controls_its_own_requests_only(kind: type[Control], said: dict[str, Any]) -> None:
    court = opened()
    assert rejection(court.hear_control(court.message(kind, **said), "c2")) == "not_allowed"


@each_control
def test_a_client_only_cancels_and_replies(kind: type[Control], said: dict[str, Any]) -> None:
    court = opened()
    ruling = court.hear_control(court.message(kind, **said), "c1")
    if kind is Cancel:
        is_(ruling, RequestCancelled)
    else:
        assert rejection(ruling) == ("unknown_turn" if kind is Reply else "not_allowed")


@each_control
def test_after_the_end_every_control_is_late(kind: type[Control], said: dict[str, Any]) -> None:
    court = played(complete())
    assert late(court.hear_control(court.message(kind, **said))).ended == "completed"


@pytest.mark.parametrize(
    ("kind", "said", "code"),
    [
        (Thaw, {}, "not_frozen"),
        (Assign, {"turn": "t", "to": "Ada"}, "unknown_turn"),
        (Resolve, {"turn": "t"}, "unknown_turn"),
        (Reply, {"turn": "t", "round": 0}, "unknown_turn"),
        (Settle, {"turn": "t", "round": 0, "outcome": "done"}, "unknown_turn"),
    ],
)
def test_what_is_not_there_cannot_be_controlled(kind: type[Control], said: dict[str, Any], code: str) -> None:
    court = opened()
    assert rejection(court.hear_control(court.message(kind, **said))) == code


def test_a_frozen_request_cannot_be_frozen_again() -> None:
    court = opened()
    court.control(Freeze)
    assert rejection(court.hear_control(court.message(Freeze))) == "frozen"


def test_a_control_message_that_comes_twice_is_the_same_message() -> None:
    court = opened()
    message = court.message(Freeze)
    court.hear_control(message)
    assert late(court.hear_control(message)).ended == "decided"
    court.control(Thaw)
    assert late(court.hear_control(message)).ended == "decided"


def test_the_same_id_from_somebody_else_is_another_message() -> None:
    court = opened()
    message = court.message(Freeze)
    court.hear_control(message, "op1")
    assert rejection(court.hear_control(message, "op2")) == "frozen"


@pytest.mark.parametrize("kind", [Assign, Resolve])
def test_an_agents_turn_is_no_escalation(kind: type[Control]) -> None:
    court = opened()
    said = {"to": "Ada"} if kind is Assign else {}
    assert rejection(court.hear_control(court.message(kind, turn=court.turn, **said))) == "unknown_turn"


def test_an_escalation_is_resolved_once() -> None:
    court = played(escalate())
    human = court.turn
    is_(court.control(Resolve, turn=human), EscalationResolved)
    assert late(court.hear_control(court.message(Resolve, turn=human))) == Late(human, 0, "ended")
    assert late(court.hear_control(court.message(Assign, turn=human, to="Ada"))).ended == "ended"


@pytest.mark.parametrize(
    ("asked", "sender", "allowed"),
    [
        pytest.param("c1", "c1", True, id="the-client"),
        pytest.param("c1", "op1", False, id="an-operator-for-the-client"),
        pytest.param("human", "op1", True, id="an-operator-for-people"),
        pytest.param("human", "c1", False, id="the-client-for-people"),
    ],
)
def test_a_question_is_answered_by_whom_it_was_put_to(asked: str, sender: str, allowed: bool) -> None:
    court = played(ask(asked))
    ruling = court.hear_control(court.message(Reply, turn=court.turn, round=0), sender)
    if allowed:
        is_(ruling, TurnResumed)
    else:
        assert rejection(ruling) == "not_allowed"


def test_a_reply_or_a_settlement_is_for_the_round_that_waits() -> None:
    court = played(ask())
    turn = court.turn

    def reply(round_: int) -> object:
        return court.hear_control(court.message(Reply, turn=turn, round=round_), "c1")

    assert rejection(reply(1)) == "unknown_round"
    assert (
        late(court.hear_control(court.message(Settle, turn=turn, round=0, outcome="done"))).ended == "decided"
    )
    is_(reply(0), TurnResumed)
    assert late(reply(0)) == Late(turn, 0, "decided")
    assert late(reply(1)).ended == "decided"  # that round asks nothing
    court.move(transfer("b"))
    assert late(reply(1)).ended == "ended"
