"""The rules: their order, which of them concern which move, whom each refuses, and what it says."""

from typing import Any

import msgspec
import pytest

from protocol.domain import rules
from protocol.domain.breaker import Permit
from protocol.wire.commands import Report
from protocol.wire.config import Policy
from protocol.wire.event_parts import Grounds
from protocol.wire.events import EscalationRaised, MoveRefused, RequestCompleted, RequestFailed, TurnSuspended
from protocol.wire.guardrails import Guardrail
from protocol.wire.handoff import Budget, Constraints, Rule
from protocol.wire.ids import AgentName
from protocol.wire.moves import (
    TOPOLOGIES,
    Ask,
    Complete,
    Delegate,
    Deliver,
    Escalate,
    Fail,
    HandBack,
    Move,
    Transfer,
    UnknownMove,
)
from tests.certain import is_
from tests.unit.protocol.happened import admitted, refused, rule_of
from tests.unit.protocol.worlds import (
    START,
    agent,
    agents,
    ask,
    complete,
    escalate,
    fact,
    give_up,
    hand_back,
    opened,
    played,
    seconds,
    told,
    transfer,
    usage,
)


def test_the_rules_stand_in_the_order_of_their_names() -> None:
    assert [Rule.KNOWN_POLICY, *rules.RULES, Rule.CLAIMED] == list(Rule)


def test_every_move_is_judged_by_the_rules_that_can_concern_it() -> None:
    of_work = (Rule.ACTIONS, Rule.READ_ONLY, Rule.SIZE, Rule.GUARDRAIL)
    of_handoffs = (
        *(Rule.KNOWN_MOVE, Rule.KNOWN_AGENT, Rule.AGENT_AVAILABLE, Rule.LABELS, Rule.DEPTH, Rule.CYCLE),
        *(Rule.HAND_BACK, Rule.NO_RETURN, Rule.BUDGET, Rule.CONSTRAINTS, Rule.MUST_CARRY, *of_work),
    )
    by_form = (*of_handoffs[:-4], Rule.FORM, *of_work)
    assert dict(rules.RULES_FOR) == {
        Transfer: by_form,
        HandBack: of_handoffs,
        Ask: (Rule.KNOWN_MOVE, Rule.KNOWN_AGENT, Rule.ASKS, *of_work),
        Escalate: (Rule.KNOWN_MOVE, Rule.KNOWN_AGENT, Rule.LABELS, Rule.MUST_CARRY, *of_work),
        Complete: (Rule.KNOWN_MOVE, Rule.LABELS, Rule.OPEN_TASKS, *of_work, Rule.MEMORY),
        Fail: (Rule.KNOWN_MOVE, *of_work),
        Delegate: (
            *(
                Rule.KNOWN_MOVE,
                Rule.KNOWN_AGENT,
                Rule.LABELS,
                Rule.LEVELS,
                Rule.KNOWN_TASK,
                Rule.FAN_OUT,
                Rule.CAPABLE,
            ),
            *(
                Rule.CYCLE,
                Rule.REVISIONS,
                Rule.ASKS,
                Rule.BUDGET,
                Rule.CONSTRAINTS,
                Rule.MUST_CARRY,
                *of_work,
            ),
        ),
        Deliver: (Rule.KNOWN_MOVE, Rule.LABELS, Rule.OPEN_TASKS, *of_work),
    }
    judged = {rule for judging in rules.RULES_FOR.values() for rule in judging}
    assert judged == set(rules.RULES)


def test_a_transfer_that_breaks_every_rule_is_mended_one_rule_at_a_time() -> None:
    no_seven = Guardrail(name="no-seven", looks_at=("facts.k",), forbid_pattern="7")
    policy = Policy(
        max_depth=1, budget=Budget(tokens=10), max_handoff_bytes=500, max_refusals=99, guardrails=(no_seven,)
    )
    play = told(policy=policy, must_carry=("text",), allowed_actions=("look",))
    play.carries = {AgentName("b"): {AgentName("c"): {"required": ["k"]}}}
    play.move(transfer("b"))
    play.fleet["b"] = agent("b", to=())
    play.breakers |= {"a": "open", "c": "open"}
    changes: dict[str, Any] = {
        "facts": (fact("text", "x" * 600),),
        "constraints": Constraints(budget=Budget(tokens=11), allowed_actions=("look", "pay")),
    }
    report = Report(actions=("pay",))

    def rule_for(to: str) -> Rule:
        return refused(play.move(msgspec.structs.replace(transfer(to), **changes), report)).rule

    assert rule_for("a") == Rule.KNOWN_AGENT
    play.fleet["b"] = agent("b")
    assert rule_for("a") == Rule.AGENT_AVAILABLE
    play.breakers.clear()
    assert rule_for("a") == Rule.DEPTH
    play.ledger.policy = msgspec.structs.replace(policy, max_depth=2)
    assert rule_for("a") == Rule.CYCLE
    assert rule_for("c") == Rule.BUDGET
    changes["constraints"] = Constraints(allowed_actions=("look", "pay"))
    assert rule_for("c") == Rule.CONSTRAINTS
    changes["constraints"] = Constraints()
    assert rule_for("c") == Rule.MUST_CARRY
    changes["facts"] = ()
    assert rule_for("c") == Rule.FORM
    changes["facts"] = (fact("k", "x" * 600),)
    assert rule_for("c") == Rule.ACTIONS
    report = Report()
    assert rule_for("c") == Rule.SIZE
    changes["facts"] = (fact("k", 7),)
    assert rule_for("c") == Rule.GUARDRAIL
    admitted(play.move(transfer("c", fact("k")), report))


def test_a_refusal_records_what_it_rests_on() -> None:
    play = opened(fleet=agents("ab"), breakers={"b": "open"})
    event = is_(play.move(transfer("b"), usage(tokens=7)), MoveRefused)
    assert event.grounds == Grounds(fleet=1, sender=agent("a"), target=agent("b"), human=True, breaker="open")
    assert (event.report.usage.tokens, event.move) == (7, transfer("b"))


def test_complete_and_fail_end_the_request() -> None:
    assert is_(opened().move(complete({"n": 1})), RequestCompleted).answer == {"n": 1}
    failed = is_(opened().move(give_up()), RequestFailed)
    assert (failed.code, failed.reason) == ("failed", "it cannot be done")


@pytest.mark.parametrize("name", ["delegate", "?", "TRANSFER", *TOPOLOGIES["handoff"]])
def test_a_move_that_the_topology_lacks_or_nobody_could_read_is_refused_by_its_name(name: str) -> None:
    refusal = refused(opened().move(UnknownMove(name=name)))
    assert (refusal.rule, refusal.numbers) == (
        Rule.KNOWN_MOVE,
        {"move": name, "policy": "default", "topology": "handoff"},
    )
    assert repr(name) in refusal.detail
    assert "policy 'default'" in refusal.detail
    elsewhere = "; 'delegate' takes a submit with a policy whose topology is supervised or swarm"
    assert refusal.hint == f"one of: {', '.join(TOPOLOGIES['handoff'])}" + elsewhere * (name == "delegate")


MOVES = (transfer("b"), hand_back(), ask(), escalate(), complete(), give_up())
each_move = pytest.mark.parametrize("move", MOVES, ids=lambda move: type(move).__name__)


@each_move
def test_a_topology_without_moves_refuses_them_all(move: Move) -> None:
    assert rule_of(opened(policy=Policy(topology="market")).move(move)) == Rule.KNOWN_MOVE


A, B = {"a": agent("a")}, {"b": agent("b")}
BILLS = {"b": agent("b", intents=("refund", "bill"))}


@pytest.mark.parametrize(
    ("fleet", "move", "hint"),
    [
        pytest.param(A, transfer("b"), "", id="not-in-the-fleet"),
        pytest.param({"a": agent("a", to=("c", "d"))}, transfer("b"), "may hand to: c, d", id="nor-allowed"),
        pytest.param({"a": agent("a", to=("c",))} | B, transfer("b"), "may hand to: c", id="not-allowed"),
        pytest.param({"a": agent("a", to=())} | B, transfer("b"), "", id="may-hand-to-nobody"),
        pytest.param(
            A | BILLS, transfer("b", intent="sing"), "intents of b: refund, bill", id="intent-not-taken"
        ),
        pytest.param(A | B, transfer("human"), "use escalate", id="human"),
        pytest.param(A | B, transfer("c1"), "", id="the-client"),
        pytest.param(A | B, transfer("b"), None, id="no-limits"),
        pytest.param({"a": agent("a", to=("c", "b"))} | B, transfer("b"), None, id="named"),
        pytest.param(A | BILLS, transfer("b", intent="bill"), None, id="an-intent-that-it-takes"),
        pytest.param(A | BILLS, transfer("b"), None, id="no-intent"),
        pytest.param(A | {"b": agent("b", intents=())}, transfer("b"), None, id="none-to-one-who-takes-none"),
    ],
)
def test_a_transfer_needs_a_target_that_may_take_it(fleet: Any, move: Transfer, hint: str | None) -> None:
    event = opened(fleet=fleet).move(move)
    if hint is None:
        admitted(event)
        return
    refusal = refused(event)
    assert (refusal.rule, refusal.numbers) == (Rule.KNOWN_AGENT, {"target": move.to_agent})
    assert refusal.hint == hint


def test_a_hand_back_asks_neither_whom_one_may_hand_to_nor_for_the_intent_and_is_for_the_frames_own() -> None:
    play = played(transfer("b", intent="bill"), fleet={"a": agent("a", intents=()), "b": agent("b", to=())})
    assert admitted(play.move(hand_back())).work.handoff.intent is None


def test_a_hand_back_to_an_agent_that_left_the_fleet_is_refused() -> None:
    play = played(transfer("b"))
    del play.fleet["a"]
    refusal = refused(play.move(hand_back()))
    assert (refusal.rule, refusal.numbers) == (Rule.KNOWN_AGENT, {"target": "a"})
    assert refusal.hint == "transfer or escalate"


@pytest.mark.parametrize(
    ("human", "move", "comes"),
    [
        pytest.param(False, ask("human"), "ask the client, or decide without", id="ask-nobody"),
        pytest.param(True, ask("b"), "ask c1", id="ask-an-agent"),
        pytest.param(True, ask("c2"), "ask c1", id="ask-another-client"),
        pytest.param(False, escalate(), "complete or fail the request", id="escalate-to-nobody"),
        pytest.param(True, ask("human"), TurnSuspended, id="ask-people"),
        pytest.param(False, ask("c1"), TurnSuspended, id="ask-the-client"),
        pytest.param(True, escalate(), EscalationRaised, id="escalate"),
    ],
)
def test_only_the_client_and_people_that_exist_are_asked(human: bool, move: Move, comes: Any) -> None:
    event = opened(human=human).move(move)
    if isinstance(comes, str):
        assert (refused(event).rule, refused(event).hint) == (Rule.KNOWN_AGENT, comes)
    else:
        is_(event, comes)


def test_an_open_breaker_refuses_a_transfer_and_a_hand_back_but_keeps_no_question_back() -> None:
    play = opened(breakers={"b": "open", "c1": "open", "human": "open"})
    refusal = refused(play.move(transfer("b")))
    assert (refusal.rule, refusal.numbers) == (Rule.AGENT_AVAILABLE, {"target": "b"})
    assert refusal.hint == "another agent (c, d, e), or escalate"
    play.move(transfer("c"))
    play.breakers["a"] = "open"
    assert refused(play.move(hand_back())).rule == Rule.AGENT_AVAILABLE
    is_(play.move(ask()), TurnSuspended)


def test_the_refusal_says_since_when_until_when_and_who_else_there_is() -> None:
    play = played(transfer("b"))
    play.breakers["c"] = Permit("open", START, START + seconds(30))
    refusal = refused(play.move(transfer("c")))
    assert refusal.detail == (
        "c has failed too often of late; its breaker is open since 2023-11-14T22:13:20Z"
    )
    assert refusal.numbers == {"target": "c", "since": START, "until": START + seconds(30)}
    assert refusal.hint == (
        "another agent (d, e), or escalate; c is tried again from 2023-11-14T22:13:50Z on"
    ), "a is on the path, where nobody may transfer to it"
    for since in (-(10**18), 10**30):  # an entry that was written by hand
        play.breakers["c"] = Permit("open", since, since)
        assert f"{since} µs" in refused(play.move(transfer("c"))).detail


@pytest.mark.parametrize("state", ["closed", "half_open"])
def test_a_breaker_that_is_not_open_lets_work_through(state: Any) -> None:
    assert admitted(opened(breakers={"b": state}).move(transfer("b"))).grounds.breaker == state


@pytest.mark.parametrize("most", [1, 2, 5])
def test_max_depth_hops_are_allowed_and_one_more_is_not(most: int) -> None:
    names = "abcdefg"
    play = opened(fleet=agents(names), policy=Policy(max_depth=most))
    for hop in range(most):
        assert admitted(play.move(transfer(names[hop + 1]))).work.depth == hop + 1
    refusal = refused(play.move(transfer(names[most + 1])))
    assert refusal.rule == Rule.DEPTH
    assert refusal.numbers == {"depth": most + 1, "max_depth": most, "path": list(names[: most + 1])}
    assert refusal.hint == "complete, fail or escalate"
    assert refused(play.move(hand_back())).rule == Rule.DEPTH, "a hand-back is a hop too"


def test_questions_retries_and_refusals_are_no_hops() -> None:
    play = played(ask(expires_s=1), policy=Policy(max_depth=1))
    play.wait(1)
    play.fail()
    play.wait(60)
    play.move(transfer("nobody"))
    assert (play.holder.round, play.holder.work.depth) == (3, 0)
    admitted(play.move(transfer("b")))
