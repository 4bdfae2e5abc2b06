"""The oracle complains of what comes by itself too early, or though nothing of the kind is waited for."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from protocol.wire import events as ev
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent
from tests.unit.protocol.oracle.audit import Auditor
from tests.unit.protocol.worlds import Court, ask, asked, escalate, opened, transfer

EARLY_US = 1


def retried() -> Court:
    court = opened()
    court.fail()
    court.wait_until(court.next_due)
    return court


def expired_ask() -> Court:
    court = opened()
    court.move(ask(expires_s=60.0))
    court.wait(60.0)
    return court


def raised_again() -> Court:
    court = opened(policy=Policy(escalation_sla_s=60.0))
    court.move(escalate())
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
    court = opened(human=human)
    court.move(transfer("b", constraints=asked(max_resolution_time_s=5.0)))
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
