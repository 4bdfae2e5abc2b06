"""The oracle complains of what comes by itself too early, or though nothing of the kind is waited for."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from protocol.domain import budget, rules
from protocol.domain.decider import Appended, Step
from protocol.wire import events as ev
from protocol.wire.commands import Resolve, Usage
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Budget, Constraints, Rule
from tests.unit.protocol.oracle.audit import Auditor
from tests.unit.protocol.worlds import Court, ask, asked, escalate, fact, opened, played, transfer, usage

EARLY_US = 1


def retried() -> Court:
    court = opened()
    court.fail()
    court.wait_until(court.next_due)
    return court


def expired_ask() -> Court:
    court = played(ask(expires_s=60.0))
    court.wait(60.0)
    return court


def raised_again() -> Court:
    court = played(escalate(), policy=Policy(escalation_sla_s=60.0))
    court.wait(60.0)
    return court


def timed_out() -> Court:
    court = opened()
    court.wait(Policy().turn_timeout_s)
    return court


def expired() -> Court:
    court = opened(policy=Policy(unattended_after_s=None), served=False)
    court.wait(Policy().deadline_s)
    return court


def escalated() -> Court:
    court = opened()
    court.fail(permanent=True)
    return court


def overdue(wait: Callable[[Court], AnyEvent], human: bool = True) -> Court:
    """Let a handoff's own deadline pass while its turn waits for something else."""
    court = played(transfer("b", constraints=asked(max_resolution_time_s=5.0)), human=human)
    wait(court)
    court.wait(5.0)
    return court


def overdue_retry() -> Court:
    return overdue(lambda court: court.fail(retry_after_s=90.0))


def overdue_doubt() -> Court:
    return overdue(lambda court: court.doubt())


def overdue_doubt_without_people() -> Court:
    return overdue(lambda court: court.doubt(), human=False)


def complaints(events: list[AnyEvent], court: Court) -> list[str]:
    auditor = Auditor()
    for event in events:
        auditor.follow(event, court.heard.get(event.cause))
    return auditor.found


def brought_forward(kind: type[AnyEvent]) -> Callable[[Court], list[AnyEvent]]:
    """Have it come too early, with what is kept back from its reader."""

    def forged(court: Court) -> list[AnyEvent]:
        last = max(n for n, event in enumerate(court.events) if isinstance(event, kind))
        first = last - isinstance(court.events[last - 1], ev.FactsWithheld)
        at = court.events[first - 1].at + EARLY_US
        return [*court.events[:first], *(replace(each, at=at) for each in court.events[first : last + 1])]

    return forged


def for_another_reason(court: Court) -> list[AnyEvent]:
    """Escalate a turn whose effect is in doubt, and name no deadline."""
    raised = court.events[-1]
    assert isinstance(raised, ev.EscalationRaised)
    return [*court.events[:-1], replace(raised, reason="boom")]


def with_a_round_left(court: Court) -> list[AnyEvent]:
    """Escalate a turn whose failure was to be tried again."""
    failed = court.events[1]
    assert isinstance(failed, ev.TurnFailed)
    error = replace(failed.error, permanent=False)
    return [court.events[0], replace(failed, error=error, retry_at=failed.at), *court.events[2:]]


CASES: dict[str, tuple[Callable[[], Court], Callable[[Court], list[AnyEvent]], str]] = {
    "a retry": (retried, brought_forward(ev.TurnRetried), "retry comes"),
    "an ask's end": (expired_ask, brought_forward(ev.TurnResumed), "reply comes"),
    "a tier": (raised_again, brought_forward(ev.EscalationRaised), "sla comes"),
    "a timeout": (timed_out, brought_forward(ev.TurnFailed), "timeout comes"),
    "an expiry": (expired, brought_forward(ev.RequestExpired), "expiry comes"),
    "a deadline before its retry": (overdue_retry, brought_forward(ev.EscalationRaised), "deadline comes"),
    "a deadline in doubt": (overdue_doubt, brought_forward(ev.EscalationRaised), "deadline comes"),
    "a deadline in doubt that nobody can be told of": (
        overdue_doubt_without_people,
        brought_forward(ev.RequestFailed),
        "deadline comes",
    ),
    "a doubt": (overdue_doubt, for_another_reason, "escalation comes, and settlement is waited for"),
    "an escalation": (escalated, with_a_round_left, "escalation comes, and retry is waited for"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_comes_in_its_time_is_right_and_what_comes_early_is_not(name: str) -> None:
    play, forge, complaint = CASES[name]
    court = play()
    assert complaints(court.events, court) == []
    (found,) = complaints(forge(court), court)
    assert complaint in found


POLICY = Policy(budget=Budget(tokens=100), max_retries=0)


def overdraws() -> Court:
    court = opened(policy=POLICY)
    court.move(transfer("b"), usage(tokens=130))
    return court


def is_too_late() -> Court:
    court = played(transfer("b", constraints=Constraints(max_resolution_time_s=0)), policy=POLICY)
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


def complaints_of(story: Callable[[], Court]) -> list[str]:
    court, auditor = story(), Auditor()
    for event in court.events:
        auditor.follow(event, court.heard.get(event.cause))
    return auditor.found


RIGHT = (overdraws, is_too_late, changes_what_must_be_carried, is_granted_more, times_out, is_never_taken_up)


@pytest.mark.parametrize("story", RIGHT, ids=lambda story: story.__name__)
def test_of_a_right_guard_the_oracle_has_no_complaint(story: Callable[[], Court]) -> None:
    assert complaints_of(story) == []


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
    assert complaints_of(story)


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
    assert complaints_of(story)


def test_the_oracle_complains_of_a_charge_for_what_never_began(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Court.answer

    def charging(court: Court, step: Step) -> object:
        if isinstance(step, Appended):
            for turn in court.ledger.turns.values():
                turn.unaccounted = True
        return answer(court, step)

    monkeypatch.setattr(Court, "answer", charging)
    assert complaints_of(is_never_taken_up)
