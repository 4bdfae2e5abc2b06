"""Scenarios of one request: what is said to a guard, and what has to come of it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from protocol.wire.commands import (
    Assign,
    Cancel,
    Doubt,
    Failure,
    Freeze,
    MoveProposed,
    ReplyToAsk,
    ReportFailure,
    ReportInDoubt,
    Resolve,
    Settle,
    Thaw,
)
from protocol.wire.config import AgentEntry, BreakerEntry, BreakerRules, Fleet, Policy
from protocol.wire.handoff import Budget, Constraints, Fact
from protocol.wire.ids import AgentName, TurnId
from protocol.wire.moves import Ask, Complete, Escalate, HandBack, Transfer
from tests.contract import trees
from tests.contract.script import Script

FLEET = Fleet(
    name="contract",
    entry=AgentName("a"),
    agents={
        "a": AgentEntry(name=AgentName("a"), clearance=("pii",)),
        "b": AgentEntry(name=AgentName("b")),
        "c": AgentEntry(name=AgentName("c"), clearance=("pii",), to=(AgentName("a"), AgentName("b"))),
        "d": AgentEntry(name=AgentName("d"), intents=("bill",)),
        "e": AgentEntry(name=AgentName("e"), intents=("bill", "tax"), clearance=("pii",)),
    },
    clients=(AgentName("c1"), AgentName("c2")),
    operators=(AgentName("op"),),
    viewers=(AgentName("audit"),),
    human=True,
    breaker=BreakerRules(failures=2),
    labels={"ssn": ("pii",)},
)
POLICIES = {
    policy.name: policy
    for policy in (
        Policy(),
        Policy(name="tight", budget=Budget(tokens=100), max_refusals=0),
        Policy(name="frail", max_retries=0),
        Policy(name="once", max_retries=0, escalation_sla_s=60.0, max_escalations=1),
        Policy(name="timed", turn_timeout_s=60.0, unattended_after_s=120.0, max_retries=0),
        Policy(name="vast", max_handoff_bytes=1 << 20),
        Policy(name="tree", topology="supervised", budget=Budget(tokens=1000)),
    )
}


def to(agent: str, *facts: Fact, **rest: Any) -> Transfer:
    return Transfer(to_agent=AgentName(agent), summary="please", facts=facts, **rest)


def ask(who: str = "c1", **rest: Any) -> Ask:
    return Ask(to_agent=AgentName(who), question="which?", **rest)


def fact(key: str, value: Any = 1, *labels: str) -> Fact:
    return Fact(key=key, value=value, labels=labels)


BACK, DONE = HandBack(summary="here"), Complete(answer="done")
OPEN_BY_HAND = BreakerEntry(state="open")


def breaker_open(script: Script) -> None:
    script.submit()
    script.move(to("b"))
    script.move(to("c"))
    script.move(to("b"))
    script.move(BACK)


def breaker_counted(script: Script) -> None:
    """Two turns of b fail, the third is not begun; after a while one handoff is tried, and it works."""
    script.submit(policy="frail")
    script.move(to("b"))
    script.fail()
    script.control(Resolve, turn=script.turn, to=AgentName("b"))
    script.fail()
    script.control(Resolve, turn=script.turn, to=AgentName("a"))
    script.move(to("b", fact("new", 1)))
    script.wait(40)
    script.move(to("b", fact("new", 2)))
    script.move(BACK)
    script.move(to("b", fact("new", 3)))


def deadline_too_long(script: Script) -> None:
    script.submit(constraints=Constraints(max_resolution_time_s=16 * 86_400.0))


def labels_by_key(script: Script) -> None:
    script.submit(facts=(fact("ssn", "123"), fact("plan", "gold")))
    script.move(to("b"))
    script.move(BACK)
    script.move(DONE)


def withheld(script: Script) -> None:
    script.submit(facts=(fact("secret", 1, "pii"),))
    script.move(to("b", fact("more", 2, "pii")))
    script.move(to("c"))
    script.move(Escalate(summary="a person", facts=(fact("found", 3),)))
    script.control(Resolve, turn=script.turn, to=AgentName("b"), facts=(fact("ssn", "9"),))


def frozen_request(script: Script) -> None:
    script.submit()
    script.control(Freeze, by="Ann", reason="look")
    script.control(Freeze)
    script.move(to("b"))
    script.wait(30)
    script.control(Thaw)
    script.control(Thaw)


def late(script: Script) -> None:
    script.submit()
    script.submit()
    turn = script.guard.holder
    proposal = MoveProposed(turn=turn.id, round=0, move=to("b"))
    script.say("a", proposal)
    script.say("a", proposal)
    script.say("a", ReportFailure(turn=turn.id, round=0, error=Failure(code="bug")))
    script.submit()
    script.move(DONE)
    script.say("a", proposal)


def in_doubt(script: Script) -> None:
    script.submit()
    turn = script.guard.holder
    doubt = ReportInDoubt(turn=turn.id, round=0, effect=Doubt(step="0-1", action="pay"))
    script.say("a", doubt)
    script.control(Settle, turn=turn.id, round=0, outcome="not_done")
    again = script.guard.holder
    doubt = ReportInDoubt(turn=turn.id, round=again.round, effect=Doubt(step="1-1", action="pay"))
    script.say("a", doubt)
    script.control(Settle, turn=turn.id, round=again.round, outcome="done", result={"paid": 1})
    script.move(DONE)


def cycle(script: Script) -> None:
    script.submit()
    script.move(to("b"))
    script.move(to("a"))
    script.move(BACK)
    script.move(to("b"))


def out_of_budget(script: Script) -> None:
    script.submit(policy="tight")
    script.move(to("b"), tokens=101)


def must_carry(script: Script) -> None:
    script.submit(facts=(fact("order", 7),), constraints=Constraints(must_carry=("order",)))
    script.move(to("b", drop=("order",)))
    script.move(to("b"))


def malformed(script: Script) -> None:
    script.submit()
    script.say("a", b"rubbish")
    turn = script.turn.encode()
    script.say("a", b'{"kind":"move","turn":"%s","round":0,"move":{"move":"transfer"}}' % turn)
    script.say("op", b'{"kind":"cancel"}', control=True)
    script.wait(30)


def cancelled(script: Script) -> None:
    script.submit()
    script.move(ask())
    script.control(Cancel, "c2")
    script.control(Cancel, "c1", reason="enough")
    script.control(Cancel, "op")


def asked(script: Script) -> None:
    script.submit()
    script.move(ask())
    turn = script.turn
    script.control(ReplyToAsk, "op", turn=turn, round=0, value=1)
    script.control(ReplyToAsk, "c1", turn=turn, round=0, value="this")
    script.move(ask("human", expires_s=20.0))
    script.wait(20)
    script.move(ask("nobody"))


def resolved(script: Script) -> None:
    script.submit()
    script.move(Escalate(summary="help"))
    script.control(Assign, turn=script.turn, to="Ann")
    script.control(Resolve, turn=script.turn, to=AgentName("nobody"))
    script.control(Resolve, turn=script.turn, again=True, by="Ann", summary="go on")
    script.move(Escalate(summary="help again"))
    script.control(Resolve, turn=script.turn, complete=True, answer="by hand")


def retried(script: Script) -> None:
    script.submit()
    script.fail()
    script.wait(0.1)
    script.wait(5)
    script.fail(retry_after_s=33.0)
    script.wait(40)
    script.fail(permanent=True)


def raised_again(script: Script) -> None:
    script.submit(policy="once")
    script.fail()
    script.wait(61)
    script.control(Resolve, turn=script.turn, to=AgentName("b"))
    script.fail()


def expired(script: Script) -> None:
    script.submit(constraints=Constraints(max_resolution_time_s=50.0))
    script.move(to("b"))
    script.wait(51)


def timed_out(script: Script) -> None:
    script.submit(policy="timed")
    script.wait(59)
    script.wait(1)
    script.control(Resolve, turn=script.turn, again=True)
    script.wait(60)


def unattended(script: Script) -> None:
    script.submit(policy="timed")
    script.wait(100)
    script.wait(20)


def frozen_mesh(script: Script) -> None:
    script.submit()
    script.move(ask())
    script.freeze_mesh(True)
    script.control(ReplyToAsk, "c1", turn=script.turn, round=0, value="this")
    script.freeze_mesh(False)
    script.move(DONE)


def not_to_be_heard(script: Script) -> None:
    script.control(Cancel, "op")
    script.submit(sender="c2")
    script.submit()
    script.submit("something else")
    script.move(to("b"), by="b")
    script.control(Freeze, "c1")
    script.say("a", MoveProposed(turn=TurnId("none"), round=0, move=DONE))
    script.say("a", MoveProposed(turn=script.turn, round=3, move=DONE))
    script.control(Resolve, turn=script.turn)


def refused_submit(script: Script) -> None:
    script.submit(policy="none")


def wrong_targets(script: Script) -> None:
    script.submit()
    script.move(to("nobody"))
    script.move(to("d", intent="sing"))
    script.move(to("c"))
    script.move(to("d"))


def too_large(script: Script) -> None:
    part = "x" * 205_000
    script.submit(part, policy="vast")
    script.move(to("b", fact("b", part)))
    script.move(to("d", fact("d", part), intent="bill"))
    script.move(to("c", fact("c", part)))
    script.move(Transfer(to_agent=AgentName("nobody"), summary="x" * 240_000))
    script.move(DONE)


class Scenario(NamedTuple):
    """One story, and what has to come of it, so that it is about what it says it is about."""

    play: Callable[[Script], None]
    comes: str
    """The events by type, with the rule or code of those that have one."""
    rejected: str = ""
    """Codes of what became a dead letter."""
    served: bool = False
    breakers: Mapping[str, BreakerEntry] = {}


SCENARIOS = (
    Scenario(
        breaker_open,
        "request.opened move.refused:agent_available handoff.admitted move.refused:agent_available"
        " handoff.admitted",
        breakers={"b": OPEN_BY_HAND},
    ),
    Scenario(
        breaker_counted,
        "request.opened handoff.admitted turn.failed:bug escalation.raised escalation.resolved"
        " turn.failed:bug escalation.raised escalation.resolved move.refused:agent_available"
        " handoff.admitted handoff.admitted handoff.admitted",
    ),
    Scenario(deadline_too_long, "request.refused:constraints"),
    Scenario(refused_submit, "request.refused:known_policy"),
    Scenario(labels_by_key, "request.opened handoff.admitted handoff.admitted request.completed"),
    Scenario(
        withheld, "request.opened handoff.admitted handoff.admitted escalation.raised escalation.resolved"
    ),
    Scenario(
        frozen_request,
        "request.opened request.frozen move.deferred request.thawed handoff.admitted",
        rejected="frozen not_frozen",
    ),
    Scenario(frozen_mesh, "request.opened turn.suspended turn.resumed request.completed"),
    Scenario(late, "request.opened handoff.admitted request.completed"),
    Scenario(
        in_doubt,
        "request.opened effect.doubted effect.settled effect.doubted effect.settled request.completed",
    ),
    Scenario(cycle, "request.opened handoff.admitted move.refused:cycle handoff.admitted move.refused:cycle"),
    Scenario(out_of_budget, "request.opened move.refused:budget escalation.raised"),
    Scenario(must_carry, "request.opened move.refused:must_carry handoff.admitted"),
    Scenario(
        wrong_targets,
        "request.opened move.refused:known_agent move.refused:known_agent handoff.admitted"
        " move.refused:known_agent",
    ),
    Scenario(
        malformed,
        "request.opened turn.failed:malformed turn.retried",
        rejected="protocol.malformed protocol.malformed protocol.malformed",
    ),
    Scenario(
        too_large,
        "request.opened handoff.admitted handoff.admitted handoff.admitted request.completed",
        rejected="event_too_large",
    ),
    Scenario(
        not_to_be_heard,
        "request.opened",
        rejected="unknown_request unusable_id request_exists not_the_holder not_allowed unknown_turn"
        " unknown_round unknown_turn",
    ),
    Scenario(cancelled, "request.opened turn.suspended request.cancelled", rejected="not_allowed"),
    Scenario(
        asked,
        "request.opened turn.suspended turn.resumed turn.suspended turn.resumed move.refused:known_agent",
        rejected="not_allowed",
    ),
    Scenario(
        resolved,
        "request.opened escalation.raised escalation.assigned escalation.resolved escalation.raised"
        " request.completed",
        rejected="unknown_agent",
    ),
    Scenario(
        retried,
        "request.opened turn.failed:bug turn.retried turn.failed:bug turn.retried turn.failed:bug"
        " escalation.raised",
    ),
    Scenario(
        raised_again,
        "request.opened turn.failed:bug escalation.raised escalation.raised escalation.resolved"
        " turn.failed:bug request.failed:max_escalations",
    ),
    Scenario(expired, "request.opened handoff.admitted request.expired"),
    Scenario(
        timed_out,
        "request.opened turn.failed:timeout escalation.raised escalation.resolved turn.failed:timeout"
        " escalation.raised",
        served=True,
    ),
    Scenario(unattended, "request.opened turn.failed:unattended escalation.raised"),
    Scenario(
        trees.supervised,
        "request.opened turn.delegated task.opened task.opened turn.delegated task.opened"
        " move.refused:read_only task.delivered turn.resumed task.delivered turn.resumed turn.delegated"
        " task.cancelled task.opened task.failed:failed turn.resumed request.completed",
    ),
    Scenario(
        trees.fallen_back,
        "request.opened turn.delegated task.opened task.failed:failed task.opened task.failed:failed"
        " turn.resumed request.completed",
        served=True,
    ),
    Scenario(
        trees.tree_cancelled,
        "request.opened turn.delegated task.opened turn.delegated task.opened request.cancelled",
    ),
)
