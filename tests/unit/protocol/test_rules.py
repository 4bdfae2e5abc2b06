"""The rules as a table: their order, which of them concern which move, and what a refusal records."""

from typing import Any

import msgspec

from protocol.domain import rules
from protocol.wire.commands import Ask, Complete, Escalate, Fail, HandBack, Report, Transfer
from protocol.wire.config import Policy
from protocol.wire.events import Grounds, MoveRefused, RequestCompleted, RequestFailed
from protocol.wire.handoff import Budget, Constraints, Rule
from tests.unit.protocol.happened import admitted, refused
from tests.unit.protocol.worlds import (
    Court,
    agent,
    agents,
    complete,
    fact,
    give_up,
    hand_back,
    is_,
    opened,
    transfer,
    usage,
)


def test_the_rules_stand_in_the_order_of_their_names() -> None:
    assert [Rule.KNOWN_POLICY, *rules.RULES] == list(Rule)


def test_every_move_is_judged_by_the_rules_that_can_concern_it() -> None:
    others = (Rule.KNOWN_MOVE, Rule.KNOWN_AGENT, Rule.ASKS, Rule.ACTIONS, Rule.SIZE)
    assert dict(rules.RULES_FOR) == {
        Transfer: tuple(rules.RULES),
        HandBack: tuple(rules.RULES),
        Ask: others,
        Escalate: (Rule.KNOWN_MOVE, Rule.KNOWN_AGENT, Rule.MUST_CARRY, Rule.ACTIONS, Rule.SIZE),
        Complete: others,
        Fail: others,
    }


def test_the_first_rule_that_refuses_names_the_refusal() -> None:
    """A transfer that breaks every rule for transfers is mended one rule at a time."""
    policy = Policy(max_depth=1, budget=Budget(tokens=10), max_handoff_bytes=500, max_refusals=99)
    court = Court(policy=policy)
    court.submit(constraints=Constraints(must_carry=("text",), allowed_actions=("look",)))
    court.move(transfer("b"))
    court.fleet["b"] = agent("b", to=())
    court.breakers |= {"a": "open", "c": "open"}
    changes: dict[str, Any] = {
        "facts": (fact("text", "x" * 600),),
        "constraints": Constraints(budget=Budget(tokens=11), allowed_actions=("look", "pay")),
    }
    report = Report(actions=("pay",))

    def rule_for(to: str) -> Rule:
        return refused(court.move(msgspec.structs.replace(transfer(to), **changes), report)).rule

    assert rule_for("a") == Rule.KNOWN_AGENT
    court.fleet["b"] = agent("b")
    assert rule_for("a") == Rule.AGENT_AVAILABLE
    court.breakers.clear()
    assert rule_for("a") == Rule.DEPTH
    court.ledger.policy = msgspec.structs.replace(policy, max_depth=2)
    assert rule_for("a") == Rule.CYCLE
    assert rule_for("c") == Rule.BUDGET
    changes["constraints"] = Constraints(allowed_actions=("look", "pay"))
    assert rule_for("c") == Rule.CONSTRAINTS
    changes["constraints"] = Constraints()
    assert rule_for("c") == Rule.MUST_CARRY
    changes["facts"] = (fact("k", "x" * 600),)
    assert rule_for("c") == Rule.ACTIONS
    report = Report()
    assert rule_for("c") == Rule.SIZE
    admitted(court.move(transfer("c"), report))


def test_a_hand_back_that_has_nowhere_to_go_is_refused_before_the_seal_is_looked_at() -> None:
    court = opened()
    court.move(transfer("b", no_return=True))
    assert refused(court.move(hand_back(to="d"))).rule == Rule.HAND_BACK
    assert refused(court.move(hand_back(to="a"))).rule == Rule.NO_RETURN


def test_a_refusal_records_what_it_rests_on() -> None:
    court = opened(fleet=agents("ab"), breakers={"b": "open"})
    event = is_(court.move(transfer("b"), usage(tokens=7)), MoveRefused)
    assert event.grounds == Grounds(fleet=1, sender=agent("a"), target=agent("b"), human=True, breaker="open")
    assert event.report.usage.tokens == 7
    assert event.move == transfer("b")


def test_complete_and_fail_end_the_request() -> None:
    assert is_(opened().move(complete({"n": 1})), RequestCompleted).answer == {"n": 1}
    failed = is_(opened().move(give_up()), RequestFailed)
    assert (failed.code, failed.reason) == ("failed", "it cannot be done")
