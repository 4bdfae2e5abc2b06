"""Who may speak: fit, late, or a rejection that never becomes an event."""

from collections.abc import Callable
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
    ReplyToAsk,
    ReportFailure,
    Resolve,
    Settle,
    Submit,
    Thaw,
)
from protocol.wire.config import Policy
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
from tests.certain import is_
from tests.unit.protocol.happened import kinds
from tests.unit.protocol.worlds import Play, ask, complete, escalate, opened, played, transfer


def late(outcome: object) -> Late:
    assert isinstance(outcome, Late), outcome
    return outcome


def rejection(outcome: object) -> str:
    assert isinstance(outcome, Rejected), outcome
    assert outcome.detail
    return outcome.code


@pytest.mark.parametrize("role", ["agent", "viewer", "nobody", "operator"])
def test_only_clients_and_operators_submit(role: str) -> None:
    outcome = Play().send_submit(Submit(text="x"), role=role)
    assert isinstance(outcome, RequestOpened) or rejection(outcome) == "not_allowed"
    assert isinstance(outcome, RequestOpened) is (role == "operator")


def test_the_same_submit_again_is_late_and_another_under_its_id_is_objected_to() -> None:
    play = opened()
    same = Submit(text="help me")
    assert late(play.send_submit(same)).ended == "decided"
    assert rejection(play.send_submit(same, digest="other")) == "request_exists"
    play.move(complete())
    assert late(play.send_submit(same)) == Late("", 0, "completed")
    assert rejection(play.send_submit(same, digest="other")) == "request_exists"
    assert kinds(play.events) == [RequestOpened, FactsWithheld, RequestCompleted]


def test_a_refused_submit_that_comes_again_is_late() -> None:
    play = opened(policy=None)
    assert late(play.send_submit(Submit(text="help me"))).ended == "refused"


def move(play: Play, turn: str | None = None, round_: int | None = None) -> MoveProposed:
    holder = play.ledger.holder
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
    play = opened()
    assert rejection(play.propose(move(play, turn, round_), sender)) == code
    assert len(play.events) == 1


def test_a_proposal_for_an_unknown_request_is_objected_to() -> None:
    play = Play()
    assert rejection(play.propose(move(play), "a")) == "unknown_request"
    assert play.ledger.status == Ledger().status == "unknown"


def test_a_repeated_proposal_is_late_wherever_the_request_went_on_to() -> None:
    play = opened()
    first = move(play)
    is_(play.propose(first, "a"), HandoffAdmitted)
    assert late(play.propose(first, "a")) == Late(first.turn, 0, "ended")
    assert rejection(play.propose(first, "b")) == "not_the_holder"
    play.move(complete())
    assert late(play.propose(first, "a")).ended == "completed"


def test_an_older_round_is_late() -> None:
    play = played(transfer("nobody"))
    assert late(play.propose(move(play, round_=0), "a")) == Late(play.turn, 0, "decided")
    is_(play.propose(move(play, round_=1), "a"), HandoffAdmitted)


@pytest.mark.parametrize("state", ["suspended", "doubted", "failed", "deferred"])
def test_a_round_that_was_decided_is_late_while_the_turn_waits(state: str) -> None:
    play = opened()
    match state:
        case "suspended":
            play.move(ask())
        case "doubted":
            play.doubt()
        case "failed":
            play.fail()
        case "deferred":
            play.control(Freeze)
            play.move(transfer("b"))
    count = len(play.events)
    failure = ReportFailure(turn=play.turn, round=0, error=Failure(code="boom"))
    assert late(play.propose(move(play), "a")).ended == "decided"
    assert late(play.propose(failure, "a")).ended == "decided"
    assert len(play.events) == count


def test_a_turn_that_a_person_took_over_is_over() -> None:
    play = opened()
    turn = play.turn
    play.fail(permanent=True)
    assert late(play.propose(move(play, turn, 0), "a")).ended == "ended"
    assert rejection(play.propose(move(play), "a")) == "not_the_holder"  # it is people's now


EVERY: list[tuple[type[Control], dict[str, Any]]] = [
    (Cancel, {}),
    (Freeze, {}),
    (Thaw, {}),
    (Assign, {"turn": "t", "to": "Ada"}),
    (Resolve, {"turn": "t"}),
    (ReplyToAsk, {"turn": "t", "round": 0}),
    (Settle, {"turn": "t", "round": 0, "outcome": "done"}),
]
each_control = pytest.mark.parametrize(
    ("kind", "said"), EVERY, ids=lambda value: getattr(value, "__name__", "")
)


@each_control
@pytest.mark.parametrize(
    ("before", "sender", "code"),
    [
        pytest.param(opened, "a", "not_allowed", id="an-agent"),
        pytest.param(opened, "c2", "not_allowed", id="another-client"),
        pytest.param(Play, "op1", "unknown_request", id="for-an-unknown-request"),
    ],
)
def test_nobody_controls_what_is_not_theirs_or_not_there(
    before: Callable[[], Play], sender: str, code: str, kind: type[Control], said: dict[str, Any]
) -> None:
    play = before()
    assert rejection(play.send_control(play.message(kind, **said), sender)) == code


@each_control
def test_a_client_only_cancels_and_replies(kind: type[Control], said: dict[str, Any]) -> None:
    play = opened()
    outcome = play.send_control(play.message(kind, **said), "c1")
    if kind is Cancel:
        is_(outcome, RequestCancelled)
    else:
        assert rejection(outcome) == ("unknown_turn" if kind is ReplyToAsk else "not_allowed")


@each_control
def test_after_the_end_every_control_is_late(kind: type[Control], said: dict[str, Any]) -> None:
    play = played(complete())
    assert late(play.send_control(play.message(kind, **said))).ended == "completed"


CODES = {Freeze: "frozen", Thaw: "not_frozen"}


@each_control
def test_what_is_not_there_or_so_already_cannot_be_controlled(
    kind: type[Control], said: dict[str, Any]
) -> None:
    play = opened()
    if kind is Freeze:
        play.control(Freeze)
    if kind is not Cancel:
        code = CODES.get(kind, "unknown_turn")
        assert rejection(play.send_control(play.message(kind, **said))) == code


def test_a_control_message_that_comes_twice_is_the_same_message() -> None:
    play = opened()
    message = play.message(Freeze)
    play.send_control(message)
    assert late(play.send_control(message)).ended == "decided"
    play.control(Thaw)
    assert late(play.send_control(message)).ended == "decided"


def test_the_same_id_from_somebody_else_is_another_message() -> None:
    play = opened()
    message = play.message(Freeze)
    play.send_control(message, "op1")
    assert rejection(play.send_control(message, "op2")) == "frozen"


@pytest.mark.parametrize("kind", [Assign, Resolve])
def test_an_agents_turn_is_no_escalation(kind: type[Control]) -> None:
    play = opened()
    said = {"to": "Ada"} if kind is Assign else {}
    assert rejection(play.send_control(play.message(kind, turn=play.turn, **said))) == "unknown_turn"


def test_an_escalation_is_resolved_once() -> None:
    play = played(escalate())
    human = play.turn
    is_(play.control(Resolve, turn=human), EscalationResolved)
    assert late(play.send_control(play.message(Resolve, turn=human))) == Late(human, 0, "ended")
    assert late(play.send_control(play.message(Assign, turn=human, to="Ada"))).ended == "ended"


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
    play = played(ask(asked))
    outcome = play.send_control(play.message(ReplyToAsk, turn=play.turn, round=0), sender)
    if allowed:
        is_(outcome, TurnResumed)
    else:
        assert rejection(outcome) == "not_allowed"


def test_a_reply_or_a_settlement_is_for_the_round_that_waits() -> None:
    play = played(ask())
    turn = play.turn

    def reply(round_: int) -> object:
        return play.send_control(play.message(ReplyToAsk, turn=turn, round=round_), "c1")

    assert rejection(reply(1)) == "unknown_round"
    assert (
        late(play.send_control(play.message(Settle, turn=turn, round=0, outcome="done"))).ended == "decided"
    )
    is_(reply(0), TurnResumed)
    assert late(reply(0)) == Late(turn, 0, "decided")
    assert late(reply(1)).ended == "decided"  # that round asks nothing
    play.move(transfer("b"))
    assert late(reply(1)).ended == "ended"


def test_a_control_message_that_comes_again_or_too_late_is_told_of_the_turn_that_it_named() -> None:
    play = played(ask())
    turn = play.turn
    reply, cancel = play.message(ReplyToAsk, turn=turn, round=0, value="red"), play.message(Cancel)
    is_(play.send_control(reply, "c1"), TurnResumed)
    assert late(play.send_control(reply, "c1")) == Late(turn, 0, "decided")
    play.send_control(cancel)
    assert late(play.send_control(cancel)) == Late("", 0, "decided")
    assert late(play.send_control(play.message(Cancel))) == Late("", 0, "cancelled")
    another = play.message(ReplyToAsk, turn=turn, round=0, value="blue")
    assert late(play.send_control(another, "c1")) == Late(turn, 0, "cancelled")


@pytest.mark.parametrize(("letters", "fits"), [(1991, True), (1992, False)])
def test_a_reply_and_its_reason_are_together_no_larger_than_a_handoff(letters: int, fits: bool) -> None:
    play = played(ask(), policy=Policy(max_handoff_bytes=2000))
    reply = play.message(ReplyToAsk, turn=play.turn, round=0, value="x" * letters, reason="because")
    outcome = play.send_control(reply, "c1")
    if fits:
        is_(outcome, TurnResumed)
    else:
        assert rejection(outcome) == "too_large"
