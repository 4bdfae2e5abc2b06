"""The guard in memory: what a real one says, and what it would not say."""

import pytest

from mesh.replay.rejudge import rejudge
from mesh.testing import InMemoryGuard, NotDecided, fleet_of
from protocol.wire import events
from protocol.wire.commands import Ask, Complete, Escalate, HandBack, Transfer
from protocol.wire.config import Policy
from protocol.wire.handoff import Budget, Fact

FLEET = fleet_of("a", "b")
TO_B = Transfer(to_agent="b", summary="please")  # type: ignore[arg-type]


def test_a_request_goes_there_and_back_and_its_log_is_judged_again_to_the_same() -> None:
    court = InMemoryGuard(FLEET)
    court.submit("hello", facts=(Fact(key="k", value=1),))
    court.move(TO_B)
    court.move(HandBack(summary="done"))
    end = court.move(Complete(answer="yes"))
    assert isinstance(end, events.RequestCompleted)
    assert rejudge(court.bodies).same


def test_a_log_is_taken_up_where_it_ended() -> None:
    court = InMemoryGuard(FLEET)
    court.submit("hello")
    court.move(TO_B)
    later = InMemoryGuard.given(court.bodies, FLEET)
    refused = later.move(Transfer(to_agent="a", summary="no, you"))  # type: ignore[arg-type]
    assert isinstance(refused, events.MoveRefused)
    assert refused.refusal.rule == "cycle"
    assert (later.request, later.client) == (court.request, court.client)


def test_what_falls_due_is_appended_when_its_time_has_come() -> None:
    court = InMemoryGuard(FLEET, {"default": Policy(max_retries=1, retry_backoff_s=10)})
    court.submit("hello")
    court.fail()
    assert court.wait(1) == []
    assert [type(event) for event in court.wait(30)] == [events.TurnRetried]
    court.fail()
    assert isinstance(court.events[-1], events.EscalationRaised)


def test_the_clock_stands_while_nobody_serves_and_what_nobody_took_up_costs_nothing() -> None:
    serves = {"a": False, "b": True}
    policy = Policy(turn_timeout_s=60.0, unattended_after_s=600.0, max_retries=0, budget=Budget(tokens=100))
    court = InMemoryGuard(FLEET, {"default": policy}, served=lambda agent: serves[agent])
    court.submit("hello")
    assert court.wait(500) == []
    serves["a"] = True
    assert court.wait(59) == []
    failed, _ = court.wait(60)
    assert isinstance(failed, events.TurnFailed)
    assert failed.error.code == "timeout"
    assert court.ledger.spent.tokens == 100  # it had begun
    serves["a"] = False
    other = InMemoryGuard(FLEET, {"default": policy}, served=lambda agent: serves[agent])
    other.submit("hello")
    failed, _ = other.wait(600)
    assert isinstance(failed, events.TurnFailed)
    assert (failed.error.code, other.ledger.spent.tokens) == ("unattended", 0)
    assert rejudge(court.bodies).same
    assert rejudge(other.bodies).same


def test_people_reply_and_resolve() -> None:
    court = InMemoryGuard(FLEET)
    court.submit("hello")
    court.move(Ask(to_agent="client", question="which?"))  # type: ignore[arg-type]
    assert isinstance(court.reply("this one"), events.TurnResumed)
    court.move(Escalate(summary="help"))
    resolved = court.resolve(again=True, by="Ada")
    assert isinstance(resolved, events.EscalationResolved)
    assert resolved.by == "Ada"


def test_what_a_guard_would_not_hear_is_no_verdict() -> None:
    court = InMemoryGuard(FLEET)
    with pytest.raises(NotDecided, match="nobody holds"):
        court.move(TO_B)
    court.submit("hello")
    with pytest.raises(NotDecided, match="unknown_turn"):
        court.resolve(complete=True, answer=1)
    with pytest.raises(NotDecided, match="too late"):
        court.submit("hello")
