"""What comes by itself, and when to look again: retries, answers that do not come, and deadlines."""

from typing import Any

import pytest

from protocol.domain.admission import Late
from protocol.domain.envelope import World
from protocol.domain.ledger import Ledger
from protocol.domain.timers import by_the_clock, due, next_due
from protocol.wire.commands import Reply, Resolve, Settle
from protocol.wire.config import Policy
from protocol.wire.events import (
    EscalationRaised,
    Grounds,
    RequestExpired,
    RequestFailed,
    TurnFailed,
    TurnResumed,
    TurnRetried,
)
from protocol.wire.handoff import Constraints
from protocol.wire.ids import due_cause, event_id
from tests.unit.protocol.happened import kinds
from tests.unit.protocol.worlds import REQUEST, START, ask, complete, is_, opened, seconds, transfer

DAY = 86_400


def test_a_failed_round_is_tried_again_when_its_wait_is_over_and_not_before() -> None:
    court = opened()
    failed = is_(court.fail(), TurnFailed)
    assert failed.retry_at == court.next_due
    court.now = (failed.retry_at or 0) - 1
    assert court.finish() == []
    court.now += 1
    (event,) = court.finish()
    retried = is_(event, TurnRetried)
    assert (retried.to, retried.work.round, retried.work.turn) == ("a", 1, failed.turn)
    assert [(past.how, past.failure) for past in retried.work.past] == [("failed", failed.error)]
    cause = due_cause(REQUEST, "turn.retried", failed.turn, failed.n)
    assert (retried.cause, retried.id) == (cause, event_id(cause, "turn.retried", 0))


@pytest.mark.parametrize("most", [0, 1, 2])
def test_the_failure_after_max_retries_escalates(most: int) -> None:
    court = opened(policy=Policy(max_retries=most))
    for _ in range(most):
        assert is_(court.fail(), TurnFailed).retry_at is not None
        court.wait(60)
    court.fail("out_of_luck")
    last, raised = court.events[-2:]
    assert is_(last, TurnFailed).retry_at is None
    assert is_(raised, EscalationRaised).reason == "out_of_luck"
    assert len(is_(raised, EscalationRaised).work.past) == most + 1


def test_a_permanent_failure_escalates_at_once() -> None:
    court = opened()
    court.fail("crash_loop", permanent=True)
    assert is_(court.last, EscalationRaised).reason == "crash_loop"


def test_a_question_nobody_answers_resumes_its_turn() -> None:
    court = opened()
    court.move(ask(expires_s=60))
    assert court.next_due == START + seconds(60)
    assert court.wait(59) == []
    (event,) = court.wait(1)
    resumed = is_(event, TurnResumed)
    assert (resumed.to, resumed.sender, resumed.control) == ("a", None, "")
    assert (resumed.work.round, resumed.work.past[-1].how) == (1, "expired")


def test_a_question_that_expires_with_the_request_expires_with_it() -> None:
    court = opened()
    court.move(ask())
    assert kinds(court.wait(DAY)) == [RequestExpired]


def test_no_time_out_runs_while_a_question_waits() -> None:
    court = opened()
    court.wait(800)
    court.move(ask(expires_s=10_000))
    assert court.wait(9_999) == []
    court.control(Reply, sender="c1", turn=court.turn, round=0, value="red")
    assert court.next_due == court.now + seconds(900)  # a new round, a new clock


def test_a_request_expires_at_its_deadline_whatever_else_is_due() -> None:
    court = opened(policy=Policy(deadline_s=900))
    (event,) = court.wait(900)
    expired = is_(event, RequestExpired)
    assert (expired.to, expired.deadline) == ("c1", START + seconds(900))
    assert court.next_due is None


def test_a_handoffs_own_deadline_is_a_permanent_failure() -> None:
    court = opened()
    court.move(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    assert court.next_due == START + seconds(10)
    assert court.wait(9.9) == []
    failed, raised = court.wait(0.1)
    assert is_(failed, TurnFailed).error.code == "deadline"
    assert is_(failed, TurnFailed).retry_at is None
    assert is_(raised, EscalationRaised).reason == "deadline"


def test_a_handoffs_deadline_holds_while_its_turn_waits_for_a_retry() -> None:
    court = opened()
    court.move(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    court.fail(retry_after_s=100)
    assert court.next_due == START + seconds(10)
    assert court.wait(9.9) == []
    (event,) = court.wait(0.1)
    raised = is_(event, EscalationRaised)
    assert raised.reason == "deadline"
    own, clocks = (past.failure for past in raised.work.past)
    assert own is not None
    assert own.code == "boom"
    assert clocks is not None
    assert clocks.message == "the handoff's deadline passed while a retry was due"


def test_a_retry_that_comes_before_the_deadline_is_tried() -> None:
    court = opened()
    court.move(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    court.fail(retry_after_s=5)
    assert kinds(court.wait(5)) == [TurnRetried]
    assert kinds(court.wait(5)) == [TurnFailed, EscalationRaised]


def test_a_handoffs_deadline_holds_while_an_effect_is_in_doubt_and_a_person_is_told_which() -> None:
    court = opened()
    court.move(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    doubted = court.turn
    court.doubt()
    (event,) = court.wait(10)
    raised = is_(event, EscalationRaised)
    assert raised.reason == "deadline"
    failure = raised.work.past[-1].failure
    assert failure is not None
    assert failure.message == "the handoff's deadline passed while the effect of step 0-3 was in doubt"
    late = court.hear_control(court.message(Settle, turn=doubted, round=0, outcome="done"))
    assert isinstance(late, Late)


def test_without_people_a_deadline_that_passes_while_a_turn_waits_ends_the_request() -> None:
    court = opened(human=False)
    court.move(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    court.fail(retry_after_s=100)
    failed = is_(court.wait(10)[-1], RequestFailed)
    assert failed.reason == "failed with deadline"


def test_a_deadline_that_was_passed_is_not_handed_on_by_whoever_resolves_it() -> None:
    court = opened()
    court.move(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    court.wait(10)
    court.control(Resolve, turn=court.turn)
    assert court.holder.agent == "b"
    assert court.holder.work.handoff.constraints.deadline == court.ledger.deadline


def test_what_a_late_look_finds_happens_in_the_order_in_which_it_fell_due() -> None:
    court = opened(policy=Policy(turn_timeout_s=60, deadline_s=50.0))
    court.move(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    events = court.wait(60)
    assert kinds(events) == [TurnFailed, EscalationRaised, RequestExpired]
    assert is_(events[0], TurnFailed).error.code == "deadline"


@pytest.mark.parametrize("deciding", [None, ("x", 0)])
def test_nothing_is_due_on_a_request_that_is_not_there_or_over(deciding: Any) -> None:
    world = World(now=START + seconds(1e6), salt="0" * 32, grounds=Grounds(served=True))
    court = opened()
    court.move(complete())
    for ledger in (Ledger(), court.ledger):
        assert due(ledger, None, world, deciding) is None
        assert next_due(ledger, None, world.now) is None


def test_a_counterfactual_policy_changes_what_is_due() -> None:
    court = opened()
    world = World(now=START + seconds(5), salt="0" * 32, grounds=Grounds(served=True))
    assert due(court.ledger, None, world) is None
    is_(due(court.ledger, Policy(turn_timeout_s=5), world), TurnFailed)
    assert next_due(court.ledger, Policy(turn_timeout_s=5), START) == START + seconds(5)
    assert by_the_clock(court.ledger, Policy(turn_timeout_s=5), world.now) is court.holder
