"""What comes by itself where a turn cannot go on: a person, one tier up, or the request's end."""

from protocol.wire.commands import Freeze, Resolve, Thaw
from protocol.wire.config import Policy
from protocol.wire.events import (
    EscalationRaised,
    FactsWithheld,
    RequestCompleted,
    RequestExpired,
    RequestFailed,
    TurnRetried,
)
from protocol.wire.handoff import Budget, Constraints
from tests.unit.protocol.happened import kinds
from tests.unit.protocol.worlds import START, Court, complete, escalate, fact, is_, opened, seconds, transfer

DAY = 86_400


def test_without_people_the_first_escalation_ends_the_request() -> None:
    court = opened(human=False)
    court.fail("crash_loop", permanent=True)
    failed = is_(court.last, RequestFailed)
    assert (failed.code, failed.reason, failed.to) == ("no_human", "failed with crash_loop", "c1")
    assert court.ledger.status == "failed"


def test_last_words_name_the_rule_that_refused() -> None:
    court = opened(human=False, policy=Policy(max_refusals=0))
    court.move(transfer("nobody"))
    assert is_(court.last, RequestFailed).reason == "refused by the rule known_agent"


def test_the_escalation_after_max_escalations_ends_the_request() -> None:
    court = opened(policy=Policy(max_escalations=2))
    for _ in range(2):
        court.fail(permanent=True)
        court.control(Resolve, turn=court.turn)
    court.fail(permanent=True)
    assert is_(court.last, RequestFailed).code == "max_escalations"


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
        "failed with budget_exhausted",
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
    assert failed.reason == "refused by the rule budget"


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


def test_what_is_too_large_to_follow_ends_the_request() -> None:
    court = opened(too_large=(TurnRetried,))
    turn = court.turn
    court.fail()
    withheld, event = court.wait(10)
    failed = is_(event, RequestFailed)
    assert is_(withheld, FactsWithheld).to == "_"
    assert (failed.code, failed.turn, failed.round, failed.to) == ("event_too_large", turn, 0, "c1")
    assert failed.reason == "the next event, turn.retried, is more than the bus takes"
    assert court.next_due is None


def test_a_deferred_proposal_that_is_too_large_to_decide_ends_the_request() -> None:
    court = opened(too_large=(RequestCompleted,))
    court.control(Freeze)
    court.move(complete())
    court.control(Thaw)
    failed = is_(court.last, RequestFailed)
    assert failed.reason == "the verdict on a deferred proposal is more than the bus takes"


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
