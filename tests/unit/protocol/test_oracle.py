"""The oracle complains of what comes by itself too early, or though nothing of the kind is waited for."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from protocol.domain import budget, rules
from protocol.domain.steps import Appended, Step
from protocol.wire import events as ev
from protocol.wire.commands import Resolve, Usage
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Budget, Constraints, Rule
from tests.certain import is_
from tests.unit.protocol.oracle.audit import Auditor
from tests.unit.protocol.worlds import Play, ask, asked, escalate, fact, opened, played, transfer, usage

EARLY_US = 1


def retried() -> Play:
    play = opened()
    play.fail()
    play.wait_until(play.next_due)
    return play


def expired_ask() -> Play:
    play = played(ask(expires_s=60.0))
    play.wait(60.0)
    return play


def raised_again() -> Play:
    play = played(escalate(), policy=Policy(escalation_sla_s=60.0))
    play.wait(60.0)
    return play


def timed_out() -> Play:
    play = opened()
    play.wait(Policy().turn_timeout_s)
    return play


def expired() -> Play:
    play = opened(policy=Policy(unattended_after_s=None), served=False)
    play.wait(Policy().deadline_s)
    return play


def escalated() -> Play:
    play = opened()
    play.fail(permanent=True)
    return play


def overdue(wait: Callable[[Play], AnyEvent], human: bool = True) -> Play:
    """Let a handoff's own deadline pass while its turn waits for something else."""
    play = played(transfer("b", constraints=asked(max_resolution_time_s=5.0)), human=human)
    wait(play)
    play.wait(5.0)
    return play


def overdue_retry() -> Play:
    return overdue(lambda play: play.fail(retry_after_s=90.0))


def overdue_doubt() -> Play:
    return overdue(lambda play: play.doubt())


def overdue_doubt_without_people() -> Play:
    return overdue(lambda play: play.doubt(), human=False)


def complaints(events: list[AnyEvent], play: Play) -> list[str]:
    auditor = Auditor()
    for event in events:
        auditor.follow(event, play.heard.get(event.cause))
    return auditor.found


def brought_forward(kind: type[AnyEvent]) -> Callable[[Play], list[AnyEvent]]:
    """Have it come too early, with what is kept back from its reader."""

    def forged(play: Play) -> list[AnyEvent]:
        last = max(n for n, event in enumerate(play.events) if isinstance(event, kind))
        first = last - isinstance(play.events[last - 1], ev.FactsWithheld)
        at = play.events[first - 1].at + EARLY_US
        return [*play.events[:first], *(replace(each, at=at) for each in play.events[first : last + 1])]

    return forged


def for_another_reason(play: Play) -> list[AnyEvent]:
    """Escalate a turn whose effect is in doubt, and name no deadline."""
    raised = is_(play.events[-1], ev.EscalationRaised)
    return [*play.events[:-1], replace(raised, reason="boom")]


def with_a_round_left(play: Play) -> list[AnyEvent]:
    """Escalate a turn whose failure was to be tried again."""
    failed = is_(play.events[1], ev.TurnFailed)
    error = replace(failed.error, permanent=False)
    return [play.events[0], replace(failed, error=error, retry_at=failed.at), *play.events[2:]]


CASES: dict[str, tuple[Callable[[], Play], Callable[[Play], list[AnyEvent]], str]] = {
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
    happens, forge, complaint = CASES[name]
    play = happens()
    assert complaints(play.events, play) == []
    (found,) = complaints(forge(play), play)
    assert complaint in found


POLICY = Policy(budget=Budget(tokens=100), max_retries=0)


def overdraws() -> Play:
    play = opened(policy=POLICY)
    play.move(transfer("b"), usage(tokens=130))
    return play


def is_too_late() -> Play:
    play = played(transfer("b", constraints=Constraints(max_resolution_time_s=0)), policy=POLICY)
    return play


def changes_what_must_be_carried() -> Play:
    play = Play(policy=POLICY)
    play.submit(facts=(fact("one", 1),), constraints=Constraints(must_carry=("one",)))
    play.move(escalate(fact("one", 2)))
    return play


def is_granted_more() -> Play:
    play = opened(policy=POLICY)
    play.fail(permanent=True, report=usage(tokens=60))
    play.control(Resolve, turn=play.turn, budget=Budget(tokens=500))
    return play


def times_out() -> Play:
    play = opened(policy=POLICY)
    play.wait(900)
    play.control(Resolve, turn=play.turn)
    return play


def is_never_taken_up() -> Play:
    play = opened(policy=POLICY, served=False, begun=False)
    play.wait(3600)
    play.control(Resolve, turn=play.turn)
    return play


def complaints_of(story: Callable[[], Play]) -> list[str]:
    play, auditor = story(), Auditor()
    for event in play.events:
        auditor.follow(event, play.heard.get(event.cause))
    return auditor.found


RIGHT = (overdraws, is_too_late, changes_what_must_be_carried, is_granted_more, times_out, is_never_taken_up)


@pytest.mark.parametrize("story", RIGHT, ids=lambda story: story.__name__)
def test_of_a_right_guard_the_oracle_has_no_complaint(story: Callable[[], Play]) -> None:
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
    story: Callable[[], Play], rule: Rule, monkeypatch: pytest.MonkeyPatch
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
    story: Callable[[], Play], name: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, name, wrong)
    assert complaints_of(story)


def test_the_oracle_complains_of_a_charge_for_what_never_began(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Play.take

    def charging(play: Play, step: Step) -> None:
        if isinstance(step, Appended):
            for turn in play.ledger.turns.values():
                turn.unaccounted = True
        take(play, step)

    monkeypatch.setattr(Play, "take", charging)
    assert complaints_of(is_never_taken_up)
