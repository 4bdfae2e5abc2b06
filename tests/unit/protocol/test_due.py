"""What comes by itself: retries, escalations, expiries, time-outs, and when to look again."""

from typing import Any

import pytest

from protocol.due import asks_who_serves, due, next_due, too_large
from protocol.events import (
    AnyEvent,
    EscalationRaised,
    HandoffAdmitted,
    MoveDeferred,
    MoveRefused,
    RequestCompleted,
    RequestExpired,
    RequestFailed,
    TurnFailed,
    TurnResumed,
    TurnRetried,
)
from protocol.handoff import Budget, Constraints
from protocol.ids import AgentName, due_cause, event_id
from protocol.ledger import Ledger
from protocol.messages import Freeze, Hearing, Reply, Resolve, Settle, Thaw
from protocol.policy import Policy
from protocol.refusals import Rule
from protocol.world import Grounds, World
from tests.unit.protocol.worlds import (
    REQUEST,
    START,
    Court,
    ask,
    complete,
    escalate,
    fact,
    is_,
    opened,
    seconds,
    transfer,
)

DAY = 86_400


def kinds(events: list[AnyEvent]) -> list[type]:
    return [type(event) for event in events]


# --- retries --------------------------------------------------------------------------------------


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


# --- escalation by itself -------------------------------------------------------------------------


def test_without_people_the_first_escalation_ends_the_request() -> None:
    court = opened(human=False)
    court.fail("crash_loop", permanent=True)
    failed = is_(court.last, RequestFailed)
    assert (failed.code, failed.reason, failed.to) == ("no_human", "crash_loop: it broke", "c1")
    assert court.ledger.status == "failed"


def test_last_words_name_the_rule_that_refused() -> None:
    court = opened(human=False, policy=Policy(max_refusals=0))
    court.move(transfer("nobody"))
    assert is_(court.last, RequestFailed).reason == "known_agent: 'nobody' is not in the fleet"


def test_the_escalation_after_max_escalations_ends_the_request() -> None:
    court = opened(policy=Policy(max_escalations=2))
    for _ in range(2):
        court.fail(permanent=True)
        court.control(Resolve, turn=court.turn)
    court.fail(permanent=True)
    assert is_(court.last, RequestFailed).code == "max_escalations"


# --- questions ------------------------------------------------------------------------------------


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


# --- time-outs ------------------------------------------------------------------------------------


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
    assert failed.grounds == Grounds(fleet=1, human=True, served=True)


def test_a_look_that_finds_nobody_serving_looks_again_one_period_later() -> None:
    court = opened(served=False)
    court.wait(900)
    assert court.next_due == START + seconds(1800)
    court.wait(950)  # late
    assert court.next_due == START + seconds(2700)
    court.served = True
    assert kinds(court.wait(850)) == [TurnFailed]


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
    assert asks_who_serves(court.ledger, None, now - 1) is None
    assert asks_who_serves(court.ledger, None, now) == "a"
    court.move(ask())
    assert asks_who_serves(court.ledger, None, now) is None
    assert asks_who_serves(Ledger(), None, now) is None


def test_nothing_times_out_while_it_is_unknown_who_serves() -> None:
    court = opened()
    world = World(now=START + seconds(4000), salt="0" * 32)
    assert due(court.ledger, None, world) is None
    assert next_due(court.ledger, None, world.now) == START + seconds(4500)


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


# --- budgets that are used up ---------------------------------------------------------------------


FAILS = Policy(on_budget="fail", budget=Budget(tokens=10))


def asks_for_more(court: Court) -> None:
    for _ in range(3):
        court.move(transfer("b", constraints=Constraints(budget=Budget(tokens=99))))


def test_a_budget_that_is_used_up_goes_to_a_person_or_ends_the_request_as_the_policy_says() -> None:
    court = opened(policy=Policy())
    court.fail("budget_exhausted", permanent=True)
    assert is_(court.last, EscalationRaised).reason == "budget_exhausted"
    court = opened(policy=FAILS)
    court.fail("budget_exhausted", permanent=True)
    failed = is_(court.last, RequestFailed)
    assert (failed.code, failed.reason, failed.to) == (
        "budget_exhausted",
        "budget_exhausted: it broke",
        "c1",
    )
    assert failed.sender is None


def test_a_turn_that_the_budget_rule_leaves_without_a_round_is_taken_likewise() -> None:
    court = opened(policy=Policy(budget=Budget(tokens=10)))
    asks_for_more(court)
    assert is_(court.last, EscalationRaised).reason == "refusals"
    court = opened(policy=FAILS)
    asks_for_more(court)
    failed = is_(court.last, RequestFailed)
    assert failed.code == "budget_exhausted"
    assert failed.reason.startswith("budget: more is asked for than a has left")


def test_other_failures_and_refusals_go_to_a_person_whatever_becomes_of_budgets() -> None:
    court = opened(policy=FAILS)
    court.fail(permanent=True)
    is_(court.last, EscalationRaised)
    court = opened(policy=FAILS)
    court.move(transfer("b", constraints=Constraints(budget=Budget(tokens=99))))
    for _ in range(2):
        court.move(transfer("nobody"))
    is_(court.last, EscalationRaised)
    court = opened(policy=FAILS)
    court.move(transfer("b", constraints=Constraints(budget=Budget(tokens=99))))
    court.fail(permanent=True)
    is_(court.last, EscalationRaised)


def test_without_a_person_a_used_up_budget_ends_the_request_either_way() -> None:
    for policy, code in ((Policy(), "no_human"), (FAILS, "budget_exhausted")):
        court = opened(policy=policy, human=False)
        court.fail("budget_exhausted", permanent=True)
        assert is_(court.last, RequestFailed).code == code


# --- more than the bus takes ----------------------------------------------------------------------


def test_what_is_too_large_to_follow_ends_the_request() -> None:
    court = opened()
    court.fail()
    court.now += seconds(10)
    retried = due(court.ledger, None, court.world_for_due())
    assert isinstance(retried, TurnRetried)
    failed = is_(too_large(court.ledger, court.world_for_due(), retried), RequestFailed)
    assert (failed.code, failed.turn, failed.round, failed.to) == ("event_too_large", court.turn, 0, "c1")
    assert failed.reason == "the next event, turn.retried, is more than the bus takes"
    court.append(failed)
    assert court.next_due is None


def test_a_deferred_proposal_that_is_too_large_to_decide_ends_the_request() -> None:
    court = opened()
    court.control(Freeze)
    court.move(complete())
    court.ledger.frozen_at = None  # as after a thaw that nobody followed up yet
    waiting = due(court.ledger, None, court.world_for_due())
    assert isinstance(waiting, Hearing)
    failed = is_(too_large(court.ledger, court.world_for_due(), waiting), RequestFailed)
    assert failed.reason == "the verdict on a deferred proposal is more than the bus takes"


# --- freezing -------------------------------------------------------------------------------------


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


# --- deadlines ------------------------------------------------------------------------------------


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


def test_a_handoffs_deadline_is_looked_at_again_when_the_work_comes_back() -> None:
    court = opened()
    court.move(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    court.fail(retry_after_s=100)
    events = court.wait(100)
    assert kinds(events) == [TurnRetried, TurnFailed, EscalationRaised]


def test_a_deadline_that_was_passed_is_not_handed_on_by_whoever_resolves_it() -> None:
    court = opened()
    court.move(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    court.wait(10)
    court.control(Resolve, turn=court.turn)
    assert court.holder.agent == "b"
    assert court.holder.work.handoff.constraints.deadline == court.ledger.deadline


def test_what_a_late_look_finds_happens_in_the_order_in_which_it_fell_due() -> None:
    court = opened(policy=Policy(turn_timeout_s=20.0, deadline_s=50.0))
    court.move(transfer("b", constraints=Constraints(max_resolution_time_s=10)))
    events = court.wait(60)
    assert kinds(events) == [TurnFailed, EscalationRaised, RequestExpired]
    assert is_(events[0], TurnFailed).error.code == "deadline"


# --- people ---------------------------------------------------------------------------------------


def test_an_sla_that_passes_raises_the_escalation_again_one_tier_up_uncounted() -> None:
    court = opened(policy=Policy(escalation_sla_s=60, max_escalations=1))
    court.move(escalate(fact("why", 1)))
    first = is_(court.last, EscalationRaised)
    for tier in (2, 3, 4):
        (event,) = court.wait(60)
        raised = is_(event, EscalationRaised)
        assert (raised.reason, raised.tier, raised.to) == ("sla", tier, "human")
        assert raised.work.handoff.facts == first.work.handoff.facts
        assert raised.work.handoff.from_agent == "a"
        assert raised.turn != raised.work.turn
    assert court.ledger.escalations == 1
    court.control(Resolve, turn=court.turn)
    assert court.holder.agent == "a"


def test_people_have_no_clock_but_the_requests_deadline() -> None:
    court = opened()
    court.move(escalate())
    assert court.next_due == START + seconds(DAY)
    assert court.wait(DAY - 1) == []
    assert kinds(court.wait(1)) == [RequestExpired]


# --- the shape of it ------------------------------------------------------------------------------


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
    assert AgentName("a") == asks_who_serves(court.ledger, Policy(turn_timeout_s=5), world.now)
