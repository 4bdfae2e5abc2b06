"""The clock of a round: who serves its agent, what stops it, what stands while a request is frozen."""

import pytest

from protocol.domain.envelope import World
from protocol.domain.ledger import Ledger
from protocol.domain.timers import due
from protocol.domain.waits import may_time_out, next_due
from protocol.wire.commands import Freeze, ReplyToAsk, Settle, Thaw
from protocol.wire.config import Policy
from protocol.wire.event_parts import Grounds
from protocol.wire.events import (
    EscalationRaised,
    HandoffAdmitted,
    MoveDeferred,
    MoveRefused,
    RequestCompleted,
    RequestExpired,
    RequestThawed,
    TurnFailed,
    TurnRetried,
)
from protocol.wire.handoff import Constraints, Rule
from tests.certain import is_
from tests.unit.protocol.happened import kinds
from tests.unit.protocol.worlds import (
    DAY,
    START,
    Play,
    ask,
    complete,
    escalate,
    opened,
    played,
    seconds,
    transfer,
)


@pytest.mark.parametrize(
    ("served", "happens"),
    [pytest.param(True, [TurnFailed], id="served"), pytest.param(False, [], id="not-served")],
)
def test_a_round_times_out_only_if_somebody_serves_the_agent(served: bool, happens: list[type]) -> None:
    play = opened(served=served)
    assert play.next_due == START + seconds(900)
    assert play.wait(899.999999) == []
    assert kinds(play.wait(0.000001)) == happens


def test_a_time_out_is_a_failure_by_the_clock_and_is_tried_again() -> None:
    play = opened()
    (event,) = play.wait(900)
    failed = is_(event, TurnFailed)
    assert (failed.error.code, failed.error.permanent, failed.sender) == ("timeout", False, None)
    assert failed.retry_at is not None
    assert failed.grounds == Grounds(fleet=1, human=True, served=True, served_since=START)


def test_the_clock_stands_while_nobody_serves_the_agent_and_the_round_has_its_whole_time_after_that() -> None:
    play = opened(served=False, policy=Policy(unattended_after_s=None))
    assert play.wait(3599) == []
    play.served = True
    assert play.wait(0) == []
    assert play.next_due == START + seconds(3599 + 900)
    assert play.wait(899.9) == []
    assert kinds(play.wait(0.1)) == [TurnFailed]


def test_a_moment_without_service_is_no_span_of_it() -> None:
    play = opened(policy=Policy(turn_timeout_s=1e5))
    play.wait(3599)
    play.served = False  # one missed ping, after an hour of service
    assert play.wait(1) == []
    assert play.next_due == START + seconds(3599 + 3600)
    assert play.wait(3598) == []
    failed = is_(play.wait(1)[0], TurnFailed)
    assert failed.error.code == "unattended"
    assert failed.grounds == Grounds(fleet=1, human=True, served=False, served_since=START + seconds(3599))


def test_what_an_older_guard_decided_by_one_look_alone_is_judged_as_it_was() -> None:
    play = opened()
    world = World(now=START + seconds(900), salt="0" * 32, grounds=Grounds(served=True))
    assert is_(due(play.ledger, world), TurnFailed).error.code == "timeout"
    world = World(now=START + seconds(3600), salt="0" * 32, grounds=Grounds(served=False))
    assert is_(due(play.ledger, world), TurnFailed).error.code == "unattended"


def test_an_agent_that_nobody_serves_for_too_long_fails_for_good() -> None:
    play = opened(served=False)
    play.wait(3599)
    assert play.next_due == START + seconds(3600)
    events = play.wait(1)
    assert kinds(events) == [TurnFailed, EscalationRaised]
    error = is_(events[0], TurnFailed).error
    assert (error.code, error.permanent) == ("unattended", True)


def test_a_look_that_finds_a_patient_agent_served_looks_again_one_period_later() -> None:
    play = opened(policy=Policy(turn_timeout_s=1e5, unattended_after_s=100))
    assert play.wait(100) == []
    assert play.next_due == START + seconds(200)
    play.served = False
    assert kinds(play.wait(100)) == [TurnFailed, EscalationRaised]


def test_who_serves_is_asked_only_when_something_hangs_on_it() -> None:
    play = opened()
    now = START + seconds(900)
    assert may_time_out(play.ledger, now - 1) == []
    assert may_time_out(play.ledger, now) == [play.holder]
    assert may_time_out(play.ledger, now, (play.turn, 0)) == []
    play.move(ask())
    assert may_time_out(play.ledger, now) == []
    assert may_time_out(Ledger(), now) == []


def test_nothing_times_out_while_it_is_unknown_who_serves() -> None:
    play = opened()
    world = World(now=START + seconds(4000), salt="0" * 32)
    assert due(play.ledger, world) is None
    assert next_due(play.ledger, world.now) == START + seconds(4900)


def test_a_rounds_own_time_out_is_not_due_while_its_proposal_is_in_hand() -> None:
    play = opened()
    play.now += seconds(901)
    event = play.move(complete())
    is_(event, RequestCompleted)
    other = opened()
    other.now += seconds(901)
    world = World(now=other.now, salt="0" * 32, grounds=Grounds(served=True))
    assert due(other.ledger, world, (other.turn, 0)) is None
    assert due(other.ledger, world, (other.turn, 1)) is not None
    assert due(other.ledger, world, ("x", 0)) is not None


def test_a_doubt_stops_the_clock_and_settling_it_starts_a_new_one() -> None:
    play = opened()
    play.doubt()
    assert play.wait(10_000) == []
    assert play.next_due == START + seconds(DAY)
    play.control(Settle, turn=play.turn, round=0, outcome="done")
    assert play.next_due == play.now + seconds(900)


def test_a_frozen_clock_stands_still() -> None:
    play = opened()
    play.wait(300)
    play.control(Freeze)
    assert play.next_due == START + seconds(DAY)
    assert play.wait(5000) == []
    play.control(Thaw)
    assert play.next_due == play.now + seconds(600)
    assert play.wait(599) == []
    assert kinds(play.wait(1)) == [TurnFailed]


def test_a_round_that_began_while_frozen_has_its_whole_time_after_the_thaw() -> None:
    play = played(ask())
    play.control(Freeze)
    play.wait(100)
    play.control(ReplyToAsk, sender="c1", turn=play.turn, round=0)
    play.wait(100)
    play.control(Thaw)
    assert play.next_due == play.now + seconds(900)


@pytest.mark.parametrize("way", ["retry", "refusals", "ask", "sla", "deadline"])
def test_nothing_but_the_requests_deadline_falls_due_while_frozen(way: str) -> None:
    play = Play(policy=Policy(max_refusals=0, escalation_sla_s=10))
    limit = 10 if way == "deadline" else None
    play.submit()
    play.move(transfer("b", constraints=Constraints(max_resolution_time_s=limit)))
    match way:
        case "retry":
            play.fail()
        case "ask":
            play.move(ask(expires_s=10))
        case "sla":
            play.move(escalate())
    play.control(Freeze)
    if way == "refusals":
        is_(play.move(transfer("nobody")), MoveDeferred)
    assert play.wait(DAY - 1) == []
    assert kinds(play.wait(1)) == [RequestExpired]


def test_a_thaw_decides_the_deferred_move_by_every_rule() -> None:
    play = opened()
    play.control(Freeze)
    play.move(transfer("b"))
    play.breakers["b"] = "open"
    play.control(Thaw)
    assert is_(play.last, MoveRefused).refusal.rule == Rule.AGENT_AVAILABLE
    play.control(Freeze)
    play.move(transfer("c"))
    play.control(Thaw)
    assert is_(play.last, HandoffAdmitted).to == "c"
    assert play.ledger.deferred == []


def test_a_thawed_move_is_decided_before_its_round_times_out() -> None:
    play = opened()
    play.wait(899)
    play.control(Freeze)
    play.move(complete())
    play.wait(5000)
    play.control(Thaw)
    is_(play.last, RequestCompleted)


def test_a_failure_while_frozen_waits_for_the_thaw_to_be_tried_again() -> None:
    play = opened()
    play.control(Freeze)
    is_(play.fail(), TurnFailed)
    assert play.wait(1000) == []
    play.control(Thaw)
    is_(play.last, RequestThawed)
    play.wait_until(play.next_due)
    is_(play.last, TurnRetried)
