"""What comes by itself while a request is frozen, and what follows the thaw."""

import pytest

from protocol.wire.commands import Freeze, Reply, Thaw
from protocol.wire.config import Policy
from protocol.wire.events import (
    HandoffAdmitted,
    MoveDeferred,
    MoveRefused,
    RequestCompleted,
    RequestExpired,
    TurnFailed,
    TurnRetried,
)
from protocol.wire.handoff import Constraints, Rule
from tests.unit.protocol.happened import kinds
from tests.unit.protocol.worlds import START, Court, ask, complete, escalate, is_, opened, seconds, transfer

DAY = 86_400


def test_a_frozen_clock_stands_still() -> None:
    court = opened()
    court.wait(300)
    court.control(Freeze)
    assert court.next_due == START + seconds(DAY)
    assert court.wait(5000) == []
    court.control(Thaw)
    assert court.next_due == court.now + seconds(600)
    assert court.wait(599) == []
    assert kinds(court.wait(1)) == [TurnFailed]


def test_a_round_that_began_while_frozen_has_its_whole_time_after_the_thaw() -> None:
    court = opened()
    court.move(ask())
    court.control(Freeze)
    court.wait(100)
    court.control(Reply, sender="c1", turn=court.turn, round=0)
    court.wait(100)
    court.control(Thaw)
    assert court.next_due == court.now + seconds(900)


@pytest.mark.parametrize("way", ["retry", "refusals", "ask", "sla", "deadline"])
def test_nothing_but_the_requests_deadline_falls_due_while_frozen(way: str) -> None:
    court = Court(policy=Policy(max_refusals=0, escalation_sla_s=10))
    limit = 10 if way == "deadline" else None
    court.submit()
    court.move(transfer("b", constraints=Constraints(max_resolution_time_s=limit)))
    match way:
        case "retry":
            court.fail()
        case "ask":
            court.move(ask(expires_s=10))
        case "sla":
            court.move(escalate())
    court.control(Freeze)
    if way == "refusals":
        is_(court.move(transfer("nobody")), MoveDeferred)
    assert court.wait(DAY - 1) == []
    assert kinds(court.wait(1)) == [RequestExpired]


def test_what_fell_due_while_frozen_follows_the_thaw() -> None:
    court = opened()
    court.fail()
    court.control(Freeze)
    court.wait(100)
    court.control(Thaw)
    is_(court.last, TurnRetried)


def test_a_thaw_decides_the_deferred_move_by_every_rule() -> None:
    court = opened()
    court.control(Freeze)
    court.move(transfer("b"))
    court.breakers["b"] = "open"
    court.control(Thaw)
    assert is_(court.last, MoveRefused).refusal.rule == Rule.AGENT_AVAILABLE
    court.control(Freeze)
    court.move(transfer("c"))
    court.control(Thaw)
    assert is_(court.last, HandoffAdmitted).to == "c"
    assert court.ledger.deferred == []


def test_a_thawed_move_is_decided_before_its_round_times_out() -> None:
    court = opened()
    court.wait(899)
    court.control(Freeze)
    court.move(complete())
    court.wait(5000)
    court.control(Thaw)
    is_(court.last, RequestCompleted)


def test_a_failure_while_frozen_waits_for_the_thaw_to_be_tried_again() -> None:
    court = opened()
    court.control(Freeze)
    is_(court.fail(), TurnFailed)
    assert court.wait(1000) == []
    court.control(Thaw)
    is_(court.last, TurnRetried)
