"""The rules: their order, which of them concern which move, whom each refuses, and what it says."""

from typing import Any

import msgspec
import pytest

from protocol.domain import rules
from protocol.domain.breaker import Use
from protocol.wire.commands import (
    HANDOFF_MOVES,
    Ask,
    Complete,
    Escalate,
    Fail,
    HandBack,
    Move,
    Report,
    Resolve,
    Transfer,
    UnknownMove,
    Usage,
)
from protocol.wire.config import Policy
from protocol.wire.events import (
    AnyEvent,
    EscalationRaised,
    Grounds,
    MoveRefused,
    RequestCompleted,
    RequestFailed,
    RequestRefused,
    TurnSuspended,
)
from protocol.wire.handoff import Artifact, Budget, Constraints, Rule
from protocol.wire.ids import AgentName
from tests.unit.protocol.happened import admitted, refused
from tests.unit.protocol.worlds import (
    START,
    Play,
    agent,
    agents,
    ask,
    asked,
    complete,
    escalate,
    fact,
    give_up,
    hand_back,
    is_,
    opened,
    played,
    seconds,
    transfer,
    usage,
)

NEW = fact("new", 1)


def told(*facts: Any, policy: Policy | None = None, **constraints: Any) -> Play:
    """Return a play whose client brought these facts, under these constraints."""
    play = Play(policy=policy or Policy())
    play.submit(facts=facts, constraints=Constraints(**constraints))
    return play


def rule_of(event: AnyEvent) -> Rule | None:
    """Return the rule that refused a move, or None if none did."""
    return event.refusal.rule if isinstance(event, MoveRefused) else None


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


def test_a_transfer_that_breaks_every_rule_is_mended_one_rule_at_a_time() -> None:
    policy = Policy(max_depth=1, budget=Budget(tokens=10), max_handoff_bytes=500, max_refusals=99)
    play = told(policy=policy, must_carry=("text",), allowed_actions=("look",))
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
    changes["facts"] = (fact("k", "x" * 600),)
    assert rule_for("c") == Rule.ACTIONS
    report = Report()
    assert rule_for("c") == Rule.SIZE
    admitted(play.move(transfer("c"), report))


def test_a_refusal_records_what_it_rests_on() -> None:
    play = opened(fleet=agents("ab"), breakers={"b": "open"})
    event = is_(play.move(transfer("b"), usage(tokens=7)), MoveRefused)
    assert event.grounds == Grounds(fleet=1, sender=agent("a"), target=agent("b"), human=True, breaker="open")
    assert (event.report.usage.tokens, event.move) == (7, transfer("b"))


def test_complete_and_fail_end_the_request() -> None:
    assert is_(opened().move(complete({"n": 1})), RequestCompleted).answer == {"n": 1}
    failed = is_(opened().move(give_up()), RequestFailed)
    assert (failed.code, failed.reason) == ("failed", "it cannot be done")


@pytest.mark.parametrize("name", ["delegate", "?", "TRANSFER", *HANDOFF_MOVES])
def test_a_move_that_the_topology_lacks_or_nobody_could_read_is_refused_by_its_name(name: str) -> None:
    refusal = refused(opened().move(UnknownMove(name=name)))
    assert (refusal.rule, refusal.numbers) == (Rule.KNOWN_MOVE, {"move": name})
    assert repr(name) in refusal.detail
    assert refusal.hint == f"one of: {', '.join(HANDOFF_MOVES)}"


MOVES = (transfer("b"), hand_back(), ask(), escalate(), complete(), give_up())
each_move = pytest.mark.parametrize("move", MOVES, ids=lambda move: type(move).__name__)


@each_move
def test_a_topology_without_moves_refuses_them_all(move: Move) -> None:
    assert rule_of(opened(policy=Policy(topology="swarm")).move(move)) == Rule.KNOWN_MOVE


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
    play.breakers["c"] = Use("open", START, START + seconds(30))
    refusal = refused(play.move(transfer("c")))
    assert refusal.detail == (
        "c has failed too often of late; its breaker is open since 2023-11-14T22:13:20Z"
    )
    assert refusal.numbers == {"target": "c", "since": START, "until": START + seconds(30)}
    assert refusal.hint == (
        "another agent (d, e), or escalate; c is tried again from 2023-11-14T22:13:50Z on"
    ), "a is on the path, where nobody may transfer to it"
    for since in (-(10**18), 10**30):  # an entry that was written by hand
        play.breakers["c"] = Use("open", since, since)
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


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        pytest.param("c", "complete, escalate, or an agent not on the path", id="itself"),
        pytest.param("b", "hand_back goes to b", id="its-giver"),
        pytest.param("a", "complete, escalate, or an agent not on the path", id="further-down"),
    ],
)
def test_nobody_on_the_path_is_transferred_to_not_even_with_a_new_fact(target: str, hint: str) -> None:
    refusal = refused(played(transfer("b"), transfer("c")).move(transfer(target, NEW)))
    assert refusal.rule == Rule.CYCLE
    assert refusal.numbers == {"path": ["a", "b", "c"], "edge": ["c", target]}
    assert refusal.hint == hint


def back_and_forth() -> Play:
    return played(transfer("b", fact("k", 1)), hand_back(fact("found", {"x": 1, "y": [2]})))


@pytest.mark.parametrize(
    ("facts", "is_new"),
    [
        pytest.param((), False, id="nothing"),
        pytest.param((fact("k", 1),), False, id="a-fact-that-was-given-before"),
        pytest.param((fact("text", "help me"),), False, id="the-text"),
        pytest.param((fact("found", {"y": [2], "x": 1}),), False, id="keys-in-another-order"),
        pytest.param((fact("k", 1, "pii"),), False, id="another-label"),
        pytest.param((fact("text", "help me"), fact("k2", 1)), True, id="another-key"),
        pytest.param((fact("k", 2),), True, id="another-value"),
        pytest.param((fact("k", True),), True, id="true-is-not-one"),
        pytest.param((fact("k", "1"),), True, id="a-string-is-not-a-number"),
        pytest.param((fact("found", {"x": 1, "y": [3]}),), True, id="a-change-deep-inside"),
        pytest.param((fact("ssn", "123", "pii"),), True, id="one-that-is-withheld-from-its-receiver"),
    ],
)
def test_an_edge_is_taken_again_only_with_a_new_fact(facts: tuple[Any, ...], is_new: bool) -> None:
    event = back_and_forth().move(transfer("b", *facts))
    if is_new:
        admitted(event)
        return
    refusal = refused(event)
    assert (refusal.rule, refusal.numbers) == (Rule.CYCLE, {"path": ["a"], "edge": ["a", "b"]})
    assert refusal.hint == "bring a fact that is new to the request, or complete or escalate"


def test_a_fact_stays_old_after_it_was_dropped() -> None:
    play = back_and_forth()
    play.move(transfer("c", drop=("k",)))
    play.move(hand_back())
    assert "k" not in play.shown
    assert refused(play.move(transfer("b", fact("k", 1)))).rule == Rule.CYCLE


def test_what_a_refused_move_brought_is_still_new() -> None:
    play = back_and_forth()
    play.breakers["b"] = "open"
    assert refused(play.move(transfer("b", NEW))).rule == Rule.AGENT_AVAILABLE
    play.breakers.clear()
    admitted(play.move(transfer("b", NEW)))


def test_another_edge_to_the_same_agent_and_a_fresh_segment_need_no_new_fact() -> None:
    play = back_and_forth()
    play.move(transfer("c"))
    admitted(play.move(transfer("b")))
    play = back_and_forth()
    play.move(escalate())
    play.control(Resolve, turn=play.turn)
    admitted(play.move(transfer("b")))


def test_the_first_holder_has_nobody_to_hand_back_to() -> None:
    refusal = refused(opened().move(hand_back()))
    assert (refusal.rule, refusal.numbers) == (Rule.HAND_BACK, {"path": ["a"]})
    assert refusal.hint == "complete, transfer or escalate"


@pytest.mark.parametrize(
    ("return_to", "named", "goes_to"),
    [
        pytest.param(None, None, "b", id="to-the-frame-beneath"),
        pytest.param(None, "b", "b", id="by-name"),
        pytest.param(None, "a", None, id="not-further-down"),
        pytest.param(None, "d", None, id="not-to-a-stranger"),
        pytest.param("a", None, "a", id="to-return_to"),
        pytest.param("a", "a", "a", id="to-return_to-by-name"),
        pytest.param("a", "b", None, id="not-beside-return_to"),
        pytest.param("d", None, "b", id="return_to-is-not-on-the-path"),
        pytest.param("c", None, "b", id="return_to-is-the-holder-itself"),
        pytest.param("human", None, "b", id="return_to-is-human"),
    ],
)
def test_a_hand_back_goes_to_return_to_or_to_the_frame_beneath(
    return_to: str | None, named: str | None, goes_to: str | None
) -> None:
    event = played(transfer("b"), transfer("c", return_to=return_to)).move(hand_back(to=named))
    if goes_to is None:
        refusal = refused(event)
        assert refusal.rule == Rule.HAND_BACK
        assert refusal.hint == f"hand_back to {return_to or 'b'}, or leave the target out"
        return
    work = admitted(event).work
    assert (work.handoff.to_agent, work.depth) == (goes_to, 3)
    assert list(work.path) == ["a", "b"][: ["a", "b"].index(goes_to) + 1]


def test_a_resumed_frame_keeps_its_giver_and_its_own_return_to() -> None:
    play = played(transfer("b"), transfer("c", return_to="a"), transfer("d"), hand_back())
    assert (play.holder.agent, play.ledger.segment.top.giver) == ("c", "b")
    assert admitted(play.move(hand_back())).work.handoff.to_agent == "a"


def test_the_same_way_back_is_not_taken_twice_without_a_new_fact() -> None:
    play = back_and_forth()
    play.move(transfer("b", NEW))
    refusal = refused(play.move(hand_back()))
    assert (refusal.rule, refusal.numbers) == (Rule.HAND_BACK, {"path": ["a", "b"], "edge": ["b", "a"]})
    admitted(play.move(hand_back(fact("newer", 1))))


def test_a_sealed_turn_does_not_go_back_to_its_giver_but_has_to_have_one() -> None:
    play = played(transfer("b", no_return=True))
    refusal = refused(play.move(hand_back(NEW)))
    assert (refusal.rule, refusal.numbers) == (Rule.NO_RETURN, {"path": ["a", "b"], "sealed_at": 1})
    assert refusal.hint == "complete, escalate, or an agent not on the path"
    assert refused(play.move(hand_back(to="d"))).rule == Rule.HAND_BACK


def test_nobody_under_a_sealed_turn_goes_back_beneath_it_but_they_go_back_to_it() -> None:
    play = played(transfer("b", no_return=True), transfer("c", return_to="a"))
    assert refused(play.move(hand_back())).rule == Rule.NO_RETURN
    play = played(transfer("b", no_return=True), transfer("c"))
    assert admitted(play.move(hand_back())).work.handoff.no_return  # b is sealed still
    assert refused(play.move(hand_back())).rule == Rule.NO_RETURN


def test_a_seal_that_was_left_behind_holds_no_longer() -> None:
    play = played(transfer("b"), transfer("c", no_return=True), escalate())
    play.control(Resolve, turn=play.turn, to="c")
    play.move(transfer("b"))
    admitted(play.move(hand_back()))


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_turn_asks_max_asks_times_and_the_next_asks_anew(most: int) -> None:
    play = opened(policy=Policy(max_asks=most))
    for _ in range(most):
        is_(play.move(ask(expires_s=1)), TurnSuspended)
        play.wait(1)
    refusal = refused(play.move(ask()))
    assert (refusal.rule, refusal.numbers) == (Rule.ASKS, {"asks": most + 1, "max_asks": most})
    assert refusal.hint == "decide with what is known, or escalate"
    play.move(transfer("b"))
    assert isinstance(play.move(ask()), TurnSuspended) is (most > 0)


@pytest.mark.parametrize("dimension", ["nano_dollars", "tokens", "model_calls"])
def test_all_that_is_left_may_be_asked_for_and_one_more_may_not(dimension: str) -> None:
    play = opened(policy=Policy(budget=Budget(**{dimension: 100})))
    spent = Report(usage=Usage(**{dimension: 40}))  # type: ignore[arg-type]
    refusal = refused(play.move(transfer("b", constraints=asked(budget=Budget(**{dimension: 61}))), spent))
    assert (refusal.rule, refusal.numbers) == (Rule.BUDGET, {dimension: {"asked": 61, "left": 60}})
    just = play.move(transfer("b", constraints=asked(budget=Budget(**{dimension: 60}))), spent)
    assert admitted(just).work.handoff.constraints.budget == Budget(**{dimension: 60})


def test_what_has_no_limit_may_be_asked_for_without_limit() -> None:
    play = opened(policy=Policy(budget=Budget(tokens=5)))
    event = play.move(transfer("b", constraints=asked(budget=Budget(nano_dollars=1 << 62))))
    assert admitted(event).work.handoff.constraints.budget == Budget(nano_dollars=1 << 62, tokens=5)


@pytest.mark.parametrize("budget", [None, Budget(tokens=0), Budget(nano_dollars=1)])
def test_who_has_spent_more_than_it_may_gives_nothing_on(budget: Budget | None) -> None:
    play = opened(policy=Policy(budget=Budget(tokens=100, nano_dollars=9)))
    refusal = refused(play.move(transfer("b", constraints=asked(budget=budget)), usage(tokens=130)))
    assert (refusal.rule, refusal.numbers) == (Rule.BUDGET, {"tokens": {"left": -30}})
    assert "tokens: 30 too many" in refusal.detail
    assert refusal.hint == "complete, hand_back or escalate: a person may grant more"
    just = opened(policy=play.policy).move(transfer("b"), usage(tokens=100))
    assert admitted(just).work.handoff.constraints.budget == Budget(tokens=0, nano_dollars=9)


@pytest.mark.parametrize(
    "constraints",
    [
        pytest.param(asked(deadline=START + seconds(5)), id="now"),
        pytest.param(asked(deadline=START + seconds(1)), id="before"),
        pytest.param(asked(max_resolution_time_s=0), id="a-span-of-nothing"),
    ],
)
def test_a_deadline_that_is_not_ahead_is_refused_as_a_submits_is(constraints: Constraints) -> None:
    play = opened()
    play.now += seconds(5)
    refusal = refused(play.move(transfer("b", constraints=constraints)))
    assert (refusal.rule, refusal.numbers["now"]) == (Rule.CONSTRAINTS, play.now)
    assert refusal.numbers["deadline"] <= play.now
    assert "s ago" in refusal.detail
    assert refusal.hint == "a later deadline, or none"
    submitted = Play(now=play.now).submit(constraints=constraints)
    assert is_(submitted, RequestRefused).refusal == refusal


@pytest.mark.parametrize(
    ("constraints", "ok"),
    [
        pytest.param(asked(deadline=START + seconds(60)), True, id="the-same-deadline"),
        pytest.param(asked(deadline=START + seconds(60) + 1), False, id="a-microsecond-later"),
        pytest.param(asked(max_resolution_time_s=60), True, id="the-same-as-a-span"),
        pytest.param(asked(max_resolution_time_s=60.001), False, id="a-longer-span"),
        pytest.param(asked(max_resolution_time_s=61, deadline=START + 5), True, id="the-earlier-counts"),
        pytest.param(asked(allowed_actions=("look", "pay")), True, id="the-same-actions"),
        pytest.param(asked(allowed_actions=()), True, id="no-actions"),
        pytest.param(asked(allowed_actions=("pay", "shout")), False, id="another-action"),
    ],
)
def test_constraints_narrow_on_the_way_down(constraints: Constraints, ok: bool) -> None:
    play = told(max_resolution_time_s=60, allowed_actions=("look", "pay"))
    event = play.move(transfer("b", constraints=constraints))
    if ok:
        given = admitted(event).work.handoff.constraints
        assert given.deadline is not None
        assert given.deadline <= START + seconds(60)
        assert set(given.allowed_actions or ()) <= {"look", "pay"}
        assert given.max_resolution_time_s is None
    else:
        assert refused(event).rule == Rule.CONSTRAINTS


def test_a_widening_is_refused_with_its_numbers() -> None:
    play = told(max_resolution_time_s=60, allowed_actions=("look",))
    late = refused(play.move(transfer("b", constraints=asked(max_resolution_time_s=61.5))))
    assert late.numbers == {"deadline": START + seconds(61.5), "own_deadline": START + seconds(60)}
    assert "1.5 s after" in late.detail
    more = refused(play.move(transfer("b", constraints=asked(allowed_actions=("z", "pay")))))
    assert more.numbers == {"more": ["pay", "z"], "own": ["look"]}
    assert more.hint == "a part of the proposer's own actions"


def test_whoever_has_no_limit_may_set_one_and_what_is_not_asked_for_is_inherited() -> None:
    play = opened()
    for to, constraints in (("b", asked(allowed_actions=("pay", "look"))), ("c", Constraints())):
        play.move(transfer(to, constraints=constraints))
        assert play.holder.work.handoff.constraints.allowed_actions == ("look", "pay")


@pytest.mark.parametrize(
    ("move", "lost"),
    [
        pytest.param(transfer("b", drop=("text",)), ["text"], id="dropped"),
        pytest.param(transfer("b", fact("text", "else")), ["text"], id="changed"),
        pytest.param(transfer("b", fact("one", True)), ["one"], id="changed-in-type"),
        pytest.param(transfer("b", fact("one", 2), drop=("text",)), ["one", "text"], id="both"),
        pytest.param(transfer("b", constraints=asked(must_carry=("gone",))), ["gone"], id="never-there"),
        pytest.param(escalate(fact("one", 2)), ["one"], id="changed-by-an-escalation"),
        pytest.param(transfer("b"), [], id="left-alone"),
        pytest.param(transfer("b", fact("one", 1)), [], id="said-again"),
        pytest.param(transfer("b", drop=("free",)), [], id="another-is-dropped"),
        pytest.param(transfer("b", fact("one", 1), drop=("one",)), [], id="dropped-and-brought"),
        pytest.param(transfer("b", NEW, constraints=asked(must_carry=("new",))), [], id="asked-for"),
        pytest.param(escalate(fact("one", 1)), [], id="said-again-by-an-escalation"),
        pytest.param(escalate(fact("two", 2)), [], id="an-escalation-brings-another"),
    ],
)
def test_a_must_carry_fact_is_carried_unchanged(move: Move, lost: list[str]) -> None:
    play = told(fact("one", 1), fact("free", 1), must_carry=("text", "one"))
    event = play.move(move)
    assert play.ledger.carried()["one"].value == 1
    if lost:
        assert (refused(event).rule, refused(event).numbers) == (Rule.MUST_CARRY, {"keys": lost})
        assert refused(event).hint == "carry them unchanged; put another finding under another key"
    elif isinstance(move, Escalate):
        is_(event, EscalationRaised)
    else:
        assert set(admitted(event).work.handoff.constraints.must_carry) >= {"text", "one"}


def test_must_carry_holds_all_the_way_down_but_a_hand_back_restores_the_frames_own() -> None:
    play = played(transfer("b", fact("k", 1), constraints=asked(must_carry=("k",))), transfer("c"))
    for _ in range(2):  # b's own still
        assert refused(play.move(hand_back(drop=("k",)))).rule == Rule.MUST_CARRY
        play.move(hand_back())
    assert play.holder.work.handoff.constraints.must_carry == ()
    admitted(play.move(transfer("d", drop=("k",))))


@pytest.mark.parametrize(
    "move", [move for move in MOVES if not isinstance(move, HandBack)], ids=lambda move: type(move).__name__
)
@pytest.mark.parametrize(
    ("entry", "own", "called", "over"),
    [
        pytest.param(None, None, ("pay",), [], id="no-limit"),
        pytest.param(("pay",), None, ("pay",), [], id="the-fleet-allows-it"),
        pytest.param(("look",), None, ("look", "pay"), ["pay"], id="the-fleet-does-not"),
        pytest.param(None, ("look",), ("pay",), ["pay"], id="the-handoff-does-not"),
        pytest.param(("look", "pay"), ("look", "x"), ("look",), [], id="both-allow-it"),
        pytest.param(("look", "pay"), ("look", "x"), ("pay", "x"), ["pay", "x"], id="each-forbids-one"),
        pytest.param((), (), (), [], id="none-called"),
    ],
)
def test_a_turn_that_reports_a_forbidden_action_makes_no_move(
    move: Move, entry: Any, own: Any, called: tuple[str, ...], over: list[str]
) -> None:
    play = Play(fleet={"a": agent("a", actions=entry), "b": agent("b")})
    play.submit(constraints=Constraints(allowed_actions=own))
    event = play.move(move, Report(actions=called))
    if not over:
        assert rule_of(event) is None
        return
    refusal = refused(event)
    assert (refusal.rule, refusal.numbers["over"]) == (Rule.ACTIONS, over)
    limits = [set(limit) for limit in (entry, own) if limit is not None]
    assert refusal.numbers["allowed"] == sorted(set.intersection(*limits))
    assert "escalate" in refusal.hint
    assert refusal.detail.endswith(f"not allowed: {', '.join(over)}")


@pytest.mark.parametrize("own", [None, ("look", "pay")])
def test_an_agent_that_has_left_the_fleet_may_call_nothing_but_says_what_it_knows(own: Any) -> None:
    play = Play(fleet={"a": agent("a"), "b": agent("b")})
    play.submit(constraints=Constraints(allowed_actions=own))
    del play.fleet["a"]
    refusal = refused(play.move(complete(), Report(actions=("pay",))))
    assert (refusal.rule, refusal.numbers) == (Rule.ACTIONS, {"over": ["pay"], "allowed": []})
    assert refusal.detail == (
        "the turn reports actions that are not allowed: pay, and a is not in the fleet any more"
    )
    is_(play.move(complete()), RequestCompleted)


def test_a_handoff_of_just_the_largest_size_is_admitted_and_a_byte_more_is_not() -> None:
    event = admitted(opened().move(transfer("b", fact("k", "x" * 1000))))
    largest = len(msgspec.json.encode(event.work.handoff))
    play = opened(policy=Policy(max_handoff_bytes=largest))
    refusal = refused(play.move(transfer("b", fact("k", "x" * 1001))))
    assert refusal.rule == Rule.SIZE
    assert refusal.numbers == {"bytes": largest + 1, "max_handoff_bytes": largest}
    assert "artifacts" in refusal.hint
    admitted(play.move(transfer("b", fact("k", "x" * 1000))))


BIG = "x" * 3000


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(transfer("b", fact("k", BIG, "pii")), id="what-its-reader-will-not-see"),
        pytest.param(complete(BIG), id="an-answer"),
        pytest.param(Fail(reason=BIG), id="a-reason"),
        pytest.param(Ask(to_agent=AgentName("c1"), question=BIG), id="a-question"),
        pytest.param(escalate(fact("k", BIG)), id="an-escalation"),
    ],
)
def test_every_move_has_the_same_largest_size_and_artifacts_are_the_way_for_large_things(move: Move) -> None:
    play = opened(policy=Policy(max_handoff_bytes=2000))
    assert refused(play.move(move)).rule == Rule.SIZE
    scan = Artifact(name="scan", uri="s3://bucket/scan", size=1 << 40)
    admitted(play.move(transfer("b", artifacts=(scan,))))
