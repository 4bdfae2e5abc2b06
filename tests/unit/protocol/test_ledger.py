"""The fold: what a request's events add up to."""

import pytest

from protocol.domain.hash_chain import GENESIS, digest
from protocol.domain.ledger import Ledger, fold, fold_bodies
from protocol.wire import codec, events
from protocol.wire.commands import Assign, Cancel, Freeze, Reply, Resolve, Settle, Thaw
from protocol.wire.config import Policy
from protocol.wire.errors import UnknownEvent
from protocol.wire.events import MoveDeferred
from protocol.wire.ids import TurnId
from tests.unit.protocol.worlds import (
    START,
    Court,
    agent,
    agents,
    ask,
    complete,
    escalate,
    fact,
    hand_back,
    opened,
    transfer,
    usage,
)


def eventful() -> Court:
    """A request to which nearly everything happens."""
    court = Court(
        fleet=agents("bcd") | {"a": agent("a", clearance=("pii",))}, policy=Policy(escalation_sla_s=60.0)
    )
    court.submit(facts=(fact("ssn", 1, "pii"),))
    court.move(transfer("b"), usage(tokens=5))
    court.move(transfer("nobody"))
    court.fail()
    court.wait(60)
    court.move(ask())
    court.control(Freeze)
    court.control(Reply, sender="c1", turn=court.turn, round=2, value="red")
    court.move(hand_back(fact("found", 1)), usage(tokens=7))
    court.control(Thaw)
    court.doubt()
    court.control(Settle, turn=court.turn, round=0, outcome="done")
    court.move(escalate())
    court.wait(60)
    court.control(Assign, turn=court.turn, to="Ada")
    court.control(Resolve, turn=court.turn, again=True)
    court.move(complete())
    return court


def state(ledger: Ledger) -> dict[str, object]:
    return {name: getattr(ledger, name) for name in Ledger.__slots__ if name not in ("body", "_digest")}


def test_a_ledger_is_the_same_however_it_was_folded() -> None:
    court = eventful()
    by_steps = Ledger()
    for n, (event, body) in enumerate(zip(court.events, court.bodies, strict=True)):
        assert by_steps.n == n
        by_steps.apply(event, body)
        assert (
            state(by_steps) == state(fold(court.events[: n + 1])) == state(fold_bodies(court.bodies[: n + 1]))
        )
        assert by_steps.prev == digest(body) == fold(court.events[: n + 1]).prev
    assert state(by_steps) == state(court.ledger)


def test_an_empty_ledger_knows_nothing() -> None:
    ledger = Ledger()
    assert (ledger.n, ledger.prev, ledger.status, ledger.holder) == (0, GENESIS, "unknown", None)
    assert not ledger.is_open
    with pytest.raises(LookupError, match="no turn"):
        _ = ledger.segment


def test_every_kind_of_event_can_be_folded() -> None:
    from protocol.domain.ledger import _APPLY

    assert set(_APPLY) == set(events.AnyEvent.__args__)


def test_the_fold_fails_closed_on_what_it_does_not_know() -> None:
    court = opened()
    with pytest.raises(UnknownEvent):
        fold_bodies([*court.bodies, b'{"type":"handoff.delegated","v":1}'])


def test_hops_are_the_admitted_handoffs_in_order() -> None:
    court = opened()
    court.move(transfer("b"))
    court.move(transfer("nobody"))
    court.move(hand_back())
    assert [(hop.n, hop.move, hop.from_agent, hop.to_agent) for hop in court.ledger.hops] == [
        (1, "transfer", "a", "b"),
        (3, "hand_back", "b", "a"),
    ]


def test_a_deferred_proposal_waits_until_it_is_decided() -> None:
    court = opened()
    court.control(Freeze)
    court.move(transfer("b"))
    assert [type(waiting) for waiting in court.ledger.deferred] == [MoveDeferred]
    assert court.ledger.is_deferred(court.turn, 0)
    assert not court.ledger.is_deferred(court.turn, 1)
    assert not court.ledger.is_deferred(TurnId("x"), 0)
    court.control(Thaw)
    assert court.ledger.deferred == []


def test_a_request_that_ends_keeps_no_deferred_proposal() -> None:
    court = opened()
    court.control(Freeze)
    court.move(transfer("b"))
    court.control(Cancel)
    assert (court.ledger.deferred, court.ledger.open, court.ledger.holder) == ([], {}, None)


def test_a_cause_is_known_once_it_was_decided() -> None:
    court = Court(fleet=agents("a"))
    court.submit(facts=(fact("ssn", 1, "pii"),))
    withheld, decided = court.events
    assert withheld.cause == decided.cause
    assert not fold([withheld]).knows(withheld.cause)
    assert fold([withheld, decided]).knows(withheld.cause)
    assert not court.ledger.knows("x")


def test_a_turn_knows_when_it_was_opened_and_by_what() -> None:
    court = opened()
    court.now += 7
    court.move(transfer("b"))
    turn = court.holder
    assert (turn.opened_at, turn.clock, turn.round_n, turn.since_n) == (START + 7, START + 7, 1, 1)
    assert str(turn.id) == court.events[1].id


def test_an_escalations_turn_knows_whose_turn_it_ended_however_often_it_was_raised() -> None:
    court = opened(policy=Policy(escalation_sla_s=10))
    ended = court.turn
    court.move(escalate())
    court.wait(10)
    assert (court.holder.tier, court.holder.instead_of) == (2, ended)


def test_the_last_event_says_how_it_ended() -> None:
    court = eventful()
    assert court.ledger.ended == court.last
    assert court.ledger.status == "completed"
    assert codec.decode_event(court.ledger.body) == court.last
