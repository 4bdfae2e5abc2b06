"""What comes by itself where a round takes too long, or nobody serves its agent."""

import pytest

from protocol.domain.envelope import World
from protocol.domain.ledger import Ledger
from protocol.domain.timers import by_the_clock, due, next_due
from protocol.wire.commands import Settle
from protocol.wire.config import Policy
from protocol.wire.events import EscalationRaised, Grounds, RequestCompleted, RequestExpired, TurnFailed
from tests.unit.protocol.happened import kinds
from tests.unit.protocol.worlds import START, ask, complete, is_, opened, seconds

DAY = 86_400


@pytest.mark.parametrize(
    ("served", "happens"),
    [pytest.param(True, [TurnFailed], id="served"), pytest.param(False, [], id="not-served")],
)
def test_a_round_times_out_only_if_somebody_serves_the_agent(served: bool, happens: list[type]) -> None:
    court = opened(served=served)
    assert court.next_due == START + seconds(900)
    assert court.wait(899.999999) == []
    assert kinds(court.wait(0.000001)) == happens


def test_a_time_out_is_a_failure_by_the_clock_and_is_tried_again() -> None:
    court = opened()
    (event,) = court.wait(900)
    failed = is_(event, TurnFailed)
    assert (failed.error.code, failed.error.permanent, failed.sender) == ("timeout", False, None)
    assert failed.retry_at is not None
    assert failed.grounds == Grounds(fleet=1, human=True, served=True, served_since=START)


def test_a_look_that_finds_nobody_serving_looks_again_one_period_later() -> None:
    court = opened(served=False)
    court.wait(900)
    assert court.next_due == START + seconds(1800)
    court.wait(950)  # late
    assert court.next_due == START + seconds(2750)


def test_the_clock_stands_while_nobody_serves_the_agent_and_the_round_has_its_whole_time_after_that() -> None:
    court = opened(served=False, policy=Policy(unattended_after_s=None))
    assert court.wait(3599) == []
    court.served = True
    assert court.wait(0) == []
    assert court.next_due == START + seconds(3599 + 900)
    assert court.wait(899.9) == []
    assert kinds(court.wait(0.1)) == [TurnFailed]


def test_a_moment_without_service_is_no_span_of_it() -> None:
    court = opened(policy=Policy(turn_timeout_s=1e5))
    court.wait(3599)
    court.served = False  # one missed ping, after an hour of service
    assert court.wait(1) == []
    assert court.next_due == START + seconds(3599 + 3600)
    assert court.wait(3598) == []
    failed = is_(court.wait(1)[0], TurnFailed)
    assert failed.error.code == "unattended"
    assert failed.grounds == Grounds(fleet=1, human=True, served=False, served_since=START + seconds(3599))


def test_what_an_older_guard_decided_by_one_look_alone_is_judged_as_it_was() -> None:
    court = opened()
    world = World(now=START + seconds(900), salt="0" * 32, grounds=Grounds(served=True))
    assert is_(due(court.ledger, None, world), TurnFailed).error.code == "timeout"
    world = World(now=START + seconds(3600), salt="0" * 32, grounds=Grounds(served=False))
    assert is_(due(court.ledger, None, world), TurnFailed).error.code == "unattended"


def test_an_agent_that_nobody_serves_for_too_long_fails_for_good() -> None:
    court = opened(served=False)
    court.wait(3599)
    assert court.next_due == START + seconds(3600)
    events = court.wait(1)
    assert kinds(events) == [TurnFailed, EscalationRaised]
    error = is_(events[0], TurnFailed).error
    assert (error.code, error.permanent) == ("unattended", True)


def test_a_look_that_finds_a_patient_agent_served_looks_again_one_period_later() -> None:
    court = opened(policy=Policy(turn_timeout_s=1e5, unattended_after_s=100))
    assert court.wait(100) == []
    assert court.next_due == START + seconds(200)
    court.served = False
    assert kinds(court.wait(100)) == [TurnFailed, EscalationRaised]


def test_a_policy_without_unattended_after_waits_for_the_requests_deadline() -> None:
    court = opened(served=False, policy=Policy(unattended_after_s=None))
    assert court.wait(DAY - 1) == []
    assert kinds(court.wait(1)) == [RequestExpired]


def test_who_serves_is_asked_only_when_something_hangs_on_it() -> None:
    court = opened()
    now = START + seconds(900)
    assert by_the_clock(court.ledger, None, now - 1) is None
    assert by_the_clock(court.ledger, None, now) is court.holder
    assert by_the_clock(court.ledger, None, now, (court.turn, 0)) is None
    court.move(ask())
    assert by_the_clock(court.ledger, None, now) is None
    assert by_the_clock(Ledger(), None, now) is None


def test_nothing_times_out_while_it_is_unknown_who_serves() -> None:
    court = opened()
    world = World(now=START + seconds(4000), salt="0" * 32)
    assert due(court.ledger, None, world) is None
    assert next_due(court.ledger, None, world.now) == START + seconds(4900)


def test_a_rounds_own_time_out_is_not_due_while_its_proposal_is_in_hand() -> None:
    court = opened()
    court.now += seconds(901)
    event = court.move(complete())
    is_(event, RequestCompleted)
    other = opened()
    other.now += seconds(901)
    world = World(now=other.now, salt="0" * 32, grounds=Grounds(served=True))
    assert due(other.ledger, None, world, (other.turn, 0)) is None
    assert due(other.ledger, None, world, (other.turn, 1)) is not None
    assert due(other.ledger, None, world, ("x", 0)) is not None


def test_a_doubt_stops_the_clock_and_settling_it_starts_a_new_one() -> None:
    court = opened()
    court.doubt()
    assert court.wait(10_000) == []
    assert court.next_due == START + seconds(DAY)
    court.control(Settle, turn=court.turn, round=0, outcome="done")
    assert court.next_due == court.now + seconds(900)
