"""The oracle complains of a guard that is wrong about budgets, deadlines or what must be carried."""

from collections.abc import Callable

import pytest

from protocol.domain import budget, rules
from protocol.domain.decider import Appended, Step
from protocol.wire.commands import Resolve, Usage
from protocol.wire.config import Policy
from protocol.wire.handoff import Budget, Constraints, Rule
from tests.unit.protocol.oracle.audit import Auditor
from tests.unit.protocol.worlds import Court, escalate, fact, opened, transfer, usage

POLICY = Policy(budget=Budget(tokens=100), max_retries=0)


def overdraws() -> Court:
    court = opened(policy=POLICY)
    court.move(transfer("b"), usage(tokens=130))
    return court


def is_too_late() -> Court:
    court = opened(policy=POLICY)
    court.move(transfer("b", constraints=Constraints(max_resolution_time_s=0)))
    return court


def changes_what_must_be_carried() -> Court:
    court = Court(policy=POLICY)
    court.submit(facts=(fact("one", 1),), constraints=Constraints(must_carry=("one",)))
    court.move(escalate(fact("one", 2)))
    return court


def is_granted_more() -> Court:
    court = opened(policy=POLICY)
    court.fail(permanent=True, report=usage(tokens=60))
    court.control(Resolve, turn=court.turn, budget=Budget(tokens=500))
    return court


def times_out() -> Court:
    court = opened(policy=POLICY)
    court.wait(900)
    court.control(Resolve, turn=court.turn)
    return court


def is_never_taken_up() -> Court:
    court = opened(policy=POLICY, served=False, begun=False)
    court.wait(3600)
    court.control(Resolve, turn=court.turn)
    return court


def complaints(story: Callable[[], Court]) -> list[str]:
    court, auditor = story(), Auditor()
    for event in court.events:
        auditor.follow(event, court.heard.get(event.cause))
    return auditor.found


STORIES = (
    overdraws,
    is_too_late,
    changes_what_must_be_carried,
    is_granted_more,
    times_out,
    is_never_taken_up,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_of_a_right_guard_the_oracle_has_no_complaint(story: Callable[[], Court]) -> None:
    assert complaints(story) == []


@pytest.mark.parametrize(
    ("story", "rule"),
    [
        pytest.param(overdraws, Rule.BUDGET, id="who-has-overdrawn-gives-on"),
        pytest.param(is_too_late, Rule.CONSTRAINTS, id="a-deadline-that-passed"),
        pytest.param(changes_what_must_be_carried, Rule.MUST_CARRY, id="an-escalation-changes-a-fact"),
    ],
)
def test_the_oracle_complains_where_a_rule_is_missing(
    story: Callable[[], Court], rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rules.RULES, rule, lambda case: None)
    assert complaints(story)


@pytest.mark.parametrize(
    ("story", "name", "wrong"),
    [
        pytest.param(is_granted_more, "grant", lambda asked, rest: rest, id="a-grant-is-forgotten"),
        pytest.param(times_out, "whole", lambda rest: Usage(), id="nothing-is-charged"),
    ],
)
def test_the_oracle_complains_of_a_wrong_sum(
    story: Callable[[], Court], name: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, name, wrong)
    assert complaints(story)


def test_the_oracle_complains_of_a_charge_for_what_never_began(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Court.answer

    def charging(court: Court, step: Step) -> object:
        if isinstance(step, Appended):
            for turn in court.ledger.turns.values():
                turn.unaccounted = True
        return answer(court, step)

    monkeypatch.setattr(Court, "answer", charging)
    assert complaints(is_never_taken_up)
