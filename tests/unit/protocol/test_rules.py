"""The rules: what each refuses and what it just lets pass, its numbers, its hint, and their order."""

from typing import Any

import msgspec
import pytest

from protocol import rules
from protocol.decide import decide
from protocol.events import (
    AnyEvent,
    EscalationRaised,
    HandoffAdmitted,
    MoveRefused,
    RequestCompleted,
    RequestFailed,
    TurnSuspended,
)
from protocol.fleet import AgentEntry
from protocol.handoff import Artifact, Budget, Constraints
from protocol.ids import AgentName, Cause
from protocol.messages import (
    HANDOFF_MOVES,
    Ask,
    Complete,
    Escalate,
    Fail,
    HandBack,
    Hearing,
    Move,
    MoveProposed,
    Report,
    Resolve,
    Transfer,
    UnknownMove,
)
from protocol.policy import Policy
from protocol.refusals import Refusal, Rule
from protocol.world import Grounds
from tests.unit.protocol.worlds import (
    REQUEST,
    START,
    Court,
    agent,
    agents,
    ask,
    complete,
    escalate,
    fact,
    give_up,
    hand_back,
    is_,
    opened,
    seconds,
    transfer,
    usage,
)

NEW = fact("new", 1)


def refused(event: AnyEvent) -> Refusal:
    return is_(event, MoveRefused).refusal


def admitted(event: AnyEvent) -> HandoffAdmitted:
    return is_(event, HandoffAdmitted)


# --- the table ------------------------------------------------------------------------------------


def test_the_rules_stand_in_the_order_of_their_names() -> None:
    assert [Rule.KNOWN_POLICY, *rules.RULES] == list(Rule)


def test_every_move_is_judged_by_the_rules_that_can_concern_it() -> None:
    others = (Rule.KNOWN_MOVE, Rule.KNOWN_AGENT, Rule.ASKS, Rule.ACTIONS, Rule.SIZE)
    assert dict(rules.RULES_FOR) == {
        Transfer: tuple(rules.RULES),
        HandBack: tuple(rules.RULES),
        Ask: others,
        Escalate: others,
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


# --- known_move -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["delegate", "join", "?", "TRANSFER"])
def test_a_move_that_the_topology_lacks_is_refused_by_its_name(name: str) -> None:
    refusal = refused(opened().move(UnknownMove(name=name)))
    assert refusal.rule == Rule.KNOWN_MOVE
    assert refusal.numbers == {"move": name}
    assert repr(name) in refusal.detail
    assert refusal.hint == f"one of: {', '.join(HANDOFF_MOVES)}"


@pytest.mark.parametrize("name", HANDOFF_MOVES)
def test_an_unreadable_move_is_refused_even_under_a_known_name(name: str) -> None:
    assert refused(opened().move(UnknownMove(name=name))).rule == Rule.KNOWN_MOVE


@pytest.mark.parametrize(
    "move",
    [transfer("b"), hand_back(), ask(), escalate(), complete(), give_up()],
    ids=lambda move: type(move).__name__,
)
def test_a_topology_without_moves_refuses_them_all(move: Move) -> None:
    court = opened(policy=Policy(topology="swarm"))
    assert refused(court.move(move)).rule == Rule.KNOWN_MOVE


# --- known_agent ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "move", "hint"),
    [
        pytest.param(agent("a"), None, transfer("b"), "", id="not-in-the-fleet"),
        pytest.param(agent("a", to=("c", "d")), None, transfer("b"), "may hand to: c, d", id="nor-allowed"),
        pytest.param(agent("a", to=("c",)), agent("b"), transfer("b"), "may hand to: c", id="not-allowed"),
        pytest.param(agent("a", to=()), agent("b"), transfer("b"), "", id="may-hand-to-nobody"),
        pytest.param(
            agent("a"),
            agent("b", intents=("refund", "bill")),
            transfer("b", intent="sing"),
            "intents of b: refund, bill",
            id="intent-not-taken",
        ),
        pytest.param(agent("a"), agent("b"), transfer("human"), "use escalate", id="human"),
        pytest.param(agent("a"), agent("b"), transfer("c1"), "", id="the-client"),
    ],
)
def test_a_transfer_needs_a_target_that_may_take_it(
    a: AgentEntry, b: AgentEntry | None, move: Transfer, hint: str
) -> None:
    fleet = {"a": a} | ({"b": b} if b is not None else {})
    refusal = refused(opened(fleet=fleet).move(move))
    assert refusal.rule == Rule.KNOWN_AGENT
    assert refusal.numbers == {"target": move.to_agent}
    assert refusal.hint == hint


@pytest.mark.parametrize(
    ("a", "b", "move"),
    [
        pytest.param(agent("a"), agent("b"), transfer("b"), id="no-limits"),
        pytest.param(agent("a", to=("c", "b")), agent("b"), transfer("b"), id="named"),
        pytest.param(agent("a"), agent("b", intents=("bill",)), transfer("b", intent="bill"), id="takes-it"),
        pytest.param(agent("a"), agent("b", intents=("bill",)), transfer("b"), id="no-intent"),
        pytest.param(agent("a"), agent("b", intents=()), transfer("b"), id="no-intent-to-one-who-takes-none"),
    ],
)
def test_a_transfer_to_who_may_take_it_is_admitted(a: AgentEntry, b: AgentEntry, move: Transfer) -> None:
    admitted(opened(fleet={"a": a, "b": b}).move(move))


def test_a_hand_back_asks_neither_whom_one_may_hand_to_nor_for_the_intent_and_is_for_the_frames_own() -> None:
    court = opened(fleet={"a": agent("a", intents=()), "b": agent("b", to=())})
    court.move(transfer("b", intent="bill"))
    assert admitted(court.move(hand_back())).work.handoff.intent is None


def test_a_hand_back_to_an_agent_that_left_the_fleet_is_refused() -> None:
    court = opened()
    court.move(transfer("b"))
    del court.fleet["a"]
    refusal = refused(court.move(hand_back()))
    assert (refusal.rule, refusal.numbers) == (Rule.KNOWN_AGENT, {"target": "a"})
    assert refusal.hint == "transfer or escalate"


@pytest.mark.parametrize(
    ("human", "move", "hint"),
    [
        pytest.param(False, ask("human"), "ask the client, or decide without", id="ask-nobody"),
        pytest.param(True, ask("b"), "ask c1", id="ask-an-agent"),
        pytest.param(True, ask("c2"), "ask c1", id="ask-another-client"),
        pytest.param(False, escalate(), "complete or fail the request", id="escalate-to-nobody"),
    ],
)
def test_only_the_client_and_people_that_exist_are_asked(human: bool, move: Move, hint: str) -> None:
    refusal = refused(opened(human=human).move(move))
    assert (refusal.rule, refusal.hint) == (Rule.KNOWN_AGENT, hint)


@pytest.mark.parametrize(
    ("human", "move", "kind"),
    [
        pytest.param(True, ask("human"), TurnSuspended, id="ask-people"),
        pytest.param(False, ask("c1"), TurnSuspended, id="ask-the-client"),
        pytest.param(True, escalate(), EscalationRaised, id="escalate"),
    ],
)
def test_whoever_can_be_asked_is_asked(human: bool, move: Move, kind: type[AnyEvent]) -> None:
    is_(opened(human=human).move(move), kind)


# --- agent_available ------------------------------------------------------------------------------


def test_an_open_breaker_refuses_a_transfer_and_a_hand_back() -> None:
    court = opened(breakers={"b": "open"})
    refusal = refused(court.move(transfer("b")))
    assert (refusal.rule, refusal.numbers) == (Rule.AGENT_AVAILABLE, {"target": "b"})
    assert refusal.hint == "another agent, or escalate"
    court.move(transfer("c"))
    court.breakers["a"] = "open"
    assert refused(court.move(hand_back())).rule == Rule.AGENT_AVAILABLE


def test_the_refusal_says_since_when_until_when_and_who_else_there_is() -> None:
    court = opened()
    court.move(transfer("b"))
    turn = court.holder
    hearing = Hearing(
        REQUEST,
        turn.agent,
        MoveProposed(turn=turn.id, round=0, move=transfer("c")),
        Cause("x"),
    )
    world = court.world_for(hearing)
    grounds = msgspec.structs.replace(
        world.grounds,
        breaker="open",
        breaker_since=START,
        breaker_until=START + seconds(30),
        peers=("a", "d", "e"),
    )
    world = msgspec.structs.replace(world, grounds=grounds)
    refusal = refused(decide(court.ledger, hearing, court.policy, world))
    assert refusal.detail == (
        "c has failed too often of late; its breaker is open since 2023-11-14T22:13:20Z"
    )
    assert refusal.numbers == {"target": "c", "since": START, "until": START + seconds(30)}
    assert refusal.hint == (
        "another agent (d, e), or escalate; c is tried again from 2023-11-14T22:13:50Z on"
    ), "a is on the path, where nobody may transfer to it"
    for since in (-(10**18), 10**30):  # an entry that was written by hand
        odd = msgspec.structs.replace(grounds, breaker_since=since, breaker_until=since)
        said = refused(
            decide(court.ledger, hearing, court.policy, msgspec.structs.replace(world, grounds=odd))
        )
        assert f"{since} µs" in said.detail


@pytest.mark.parametrize("state", ["closed", "half_open"])
def test_a_breaker_that_is_not_open_lets_work_through(state: Any) -> None:
    event = admitted(opened(breakers={"b": state}).move(transfer("b")))
    assert event.grounds.breaker == state


def test_an_open_breaker_does_not_keep_a_question_back() -> None:
    is_(opened(breakers={"c1": "open", "human": "open"}).move(ask()), TurnSuspended)


# --- depth ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 2, 3, 5])
def test_max_depth_hops_are_allowed_and_one_more_is_not(most: int) -> None:
    names = "abcdefg"
    court = opened(fleet=agents(names), policy=Policy(max_depth=most))
    for hop in range(most):
        assert admitted(court.move(transfer(names[hop + 1]))).work.depth == hop + 1
    refusal = refused(court.move(transfer(names[most + 1])))
    assert refusal.rule == Rule.DEPTH
    assert refusal.numbers == {"depth": most + 1, "max_depth": most, "path": list(names[: most + 1])}
    assert refusal.hint == "complete, fail or escalate"


def test_a_hand_back_is_a_hop_too() -> None:
    court = opened(policy=Policy(max_depth=1))
    court.move(transfer("b"))
    refusal = refused(court.move(hand_back()))
    assert (refusal.rule, refusal.numbers["depth"]) == (Rule.DEPTH, 2)


def test_questions_retries_and_refusals_are_no_hops() -> None:
    court = opened(policy=Policy(max_depth=1))
    court.move(ask(expires_s=1))
    court.wait(1)
    court.fail()
    court.wait(60)
    court.move(transfer("nobody"))
    assert (court.holder.round, court.holder.work.depth) == (3, 0)
    admitted(court.move(transfer("b")))


# --- cycle ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        pytest.param("c", "complete, escalate, or an agent not on the path", id="itself"),
        pytest.param("b", "hand_back goes to b", id="its-giver"),
        pytest.param("a", "complete, escalate, or an agent not on the path", id="further-down"),
    ],
)
def test_nobody_on_the_path_is_transferred_to_not_even_with_a_new_fact(target: str, hint: str) -> None:
    court = opened()
    court.move(transfer("b"))
    court.move(transfer("c"))
    refusal = refused(court.move(transfer(target, NEW)))
    assert refusal.rule == Rule.CYCLE
    assert refusal.numbers == {"path": ["a", "b", "c"], "edge": ["c", target]}
    assert refusal.hint == hint


def back_and_forth() -> Court:
    court = opened()
    court.move(transfer("b", fact("k", 1)))
    court.move(hand_back(fact("found", {"x": 1, "y": [2]})))
    return court


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param((), id="nothing"),
        pytest.param((fact("k", 1),), id="a-fact-that-was-given-before"),
        pytest.param((fact("text", "help me"),), id="the-text"),
        pytest.param((fact("found", {"y": [2], "x": 1}),), id="keys-in-another-order"),
        pytest.param((fact("k", 1, "pii"),), id="another-label"),
    ],
)
def test_an_edge_is_not_taken_twice_without_a_new_fact(facts: tuple[Any, ...]) -> None:
    refusal = refused(back_and_forth().move(transfer("b", *facts)))
    assert refusal.rule == Rule.CYCLE
    assert refusal.numbers == {"path": ["a"], "edge": ["a", "b"]}
    assert refusal.hint == "bring a fact that is new to the request, or complete or escalate"


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(fact("k2", 1), id="another-key"),
        pytest.param(fact("k", 2), id="another-value"),
        pytest.param(fact("k", True), id="true-is-not-one"),
        pytest.param(fact("k", "1"), id="a-string-is-not-a-number"),
        pytest.param(fact("found", {"x": 1, "y": [3]}), id="a-change-deep-inside"),
    ],
)
def test_an_edge_is_taken_again_with_a_new_fact(new: Any) -> None:
    admitted(back_and_forth().move(transfer("b", fact("text", "help me"), new)))


def test_a_fact_stays_old_after_it_was_dropped() -> None:
    court = back_and_forth()
    court.move(transfer("c", drop=("k",)))
    court.move(hand_back())
    assert "k" not in court.shown
    assert refused(court.move(transfer("b", fact("k", 1)))).rule == Rule.CYCLE


def test_what_a_refused_move_brought_is_still_new() -> None:
    court = back_and_forth()
    court.breakers["b"] = "open"
    assert refused(court.move(transfer("b", NEW))).rule == Rule.AGENT_AVAILABLE
    court.breakers.clear()
    admitted(court.move(transfer("b", NEW)))


def test_a_new_fact_counts_even_if_it_has_to_be_withheld_from_its_receiver() -> None:
    court = back_and_forth()
    event = admitted(court.move(transfer("b", fact("ssn", "123", "pii"))))
    assert event.work.withheld is not None


def test_another_edge_to_the_same_agent_needs_no_new_fact() -> None:
    court = back_and_forth()
    court.move(transfer("c"))
    admitted(court.move(transfer("b")))


def test_a_fresh_segment_forgets_the_edges() -> None:
    court = back_and_forth()
    court.move(escalate())
    court.control(Resolve, turn=court.turn)
    assert court.holder.agent == "a"
    admitted(court.move(transfer("b")))


# --- hand_back ------------------------------------------------------------------------------------


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
    court = opened()
    court.move(transfer("b"))
    court.move(transfer("c", return_to=return_to))
    event = court.move(hand_back(to=named))
    if goes_to is None:
        refusal = refused(event)
        due = "b" if return_to is None else "a"
        assert refusal.rule == Rule.HAND_BACK
        assert refusal.hint == f"hand_back to {due}, or leave the target out"
    else:
        work = admitted(event).work
        assert work.handoff.to_agent == goes_to
        assert list(work.path) == ["a", "b"][: ["a", "b"].index(goes_to) + 1]
        assert work.depth == 3


def test_a_resumed_frame_keeps_its_giver_and_its_own_return_to() -> None:
    court = opened()
    court.move(transfer("b"))
    court.move(transfer("c", return_to="a"))
    court.move(transfer("d"))
    court.move(hand_back())
    assert (court.holder.agent, court.ledger.segment.top.giver) == ("c", "b")
    assert admitted(court.move(hand_back())).work.handoff.to_agent == "a"


def test_the_same_way_back_is_not_taken_twice_without_a_new_fact() -> None:
    court = back_and_forth()
    court.move(transfer("b", NEW))
    refusal = refused(court.move(hand_back()))
    assert refusal.rule == Rule.HAND_BACK
    assert refusal.numbers == {"path": ["a", "b"], "edge": ["b", "a"]}
    admitted(court.move(hand_back(fact("newer", 1))))


# --- no_return ------------------------------------------------------------------------------------


def test_a_sealed_turn_does_not_go_back_to_its_giver() -> None:
    court = opened()
    court.move(transfer("b", no_return=True))
    refusal = refused(court.move(hand_back(NEW)))
    assert refusal.rule == Rule.NO_RETURN
    assert refusal.numbers == {"path": ["a", "b"], "sealed_at": 1}
    assert refusal.hint == "complete, escalate, or an agent not on the path"


def test_nobody_under_a_sealed_turn_goes_back_beneath_it_but_they_go_back_to_it() -> None:
    court = opened()
    court.move(transfer("b", no_return=True))
    court.move(transfer("c", return_to="a"))
    assert refused(court.move(hand_back())).rule == Rule.NO_RETURN
    court = opened()
    court.move(transfer("b", no_return=True))
    court.move(transfer("c"))
    assert admitted(court.move(hand_back())).work.handoff.no_return  # b is sealed still
    assert refused(court.move(hand_back())).rule == Rule.NO_RETURN


def test_a_seal_that_was_left_behind_holds_no_longer() -> None:
    court = opened()
    court.move(transfer("b"))
    court.move(transfer("c", no_return=True))
    assert refused(court.move(hand_back())).rule == Rule.NO_RETURN
    court.move(escalate())
    court.control(Resolve, turn=court.turn, to="c")
    court.move(transfer("b"))
    admitted(court.move(hand_back()))


# --- asks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_turn_asks_max_asks_times(most: int) -> None:
    court = opened(policy=Policy(max_asks=most))
    for _ in range(most):
        is_(court.move(ask(expires_s=1)), TurnSuspended)
        court.wait(1)
    refusal = refused(court.move(ask()))
    assert (refusal.rule, refusal.numbers) == (Rule.ASKS, {"asks": most + 1, "max_asks": most})
    assert refusal.hint == "decide with what is known, or escalate"


def test_the_next_turn_asks_anew() -> None:
    court = opened(policy=Policy(max_asks=1))
    court.move(ask(expires_s=1))
    court.wait(1)
    court.move(transfer("b"))
    is_(court.move(ask()), TurnSuspended)


# --- budget ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", ["nano_dollars", "tokens", "model_calls"])
def test_all_that_is_left_may_be_asked_for_and_one_more_may_not(dimension: str) -> None:
    court = opened(policy=Policy(budget=Budget(**{dimension: 100})))
    spent = Report(usage=msgspec.convert({dimension: 40}, type=type(Report().usage)))
    over = court.move(transfer("b", constraints=Constraints(budget=Budget(**{dimension: 61}))), spent)
    refusal = refused(over)
    assert refusal.rule == Rule.BUDGET
    assert refusal.numbers == {dimension: {"asked": 61, "left": 60}}
    just = court.move(transfer("b", constraints=Constraints(budget=Budget(**{dimension: 60}))), spent)
    assert admitted(just).work.handoff.constraints.budget == Budget(**{dimension: 60})


def test_what_has_no_limit_may_be_asked_for_without_limit() -> None:
    court = opened(policy=Policy(budget=Budget(tokens=5)))
    event = court.move(transfer("b", constraints=Constraints(budget=Budget(nano_dollars=1 << 62))))
    assert admitted(event).work.handoff.constraints.budget == Budget(nano_dollars=1 << 62, tokens=5)


# --- constraints ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "ok"),
    [
        pytest.param(Constraints(deadline=START + seconds(60)), True, id="the-same-deadline"),
        pytest.param(Constraints(deadline=START + seconds(60) + 1), False, id="a-microsecond-later"),
        pytest.param(Constraints(max_resolution_time_s=60), True, id="the-same-as-a-span"),
        pytest.param(Constraints(max_resolution_time_s=60.001), False, id="a-longer-span"),
        pytest.param(
            Constraints(max_resolution_time_s=61, deadline=START + 5), True, id="the-earlier-of-both-counts"
        ),
        pytest.param(Constraints(allowed_actions=("look", "pay")), True, id="the-same-actions"),
        pytest.param(Constraints(allowed_actions=()), True, id="no-actions"),
        pytest.param(Constraints(allowed_actions=("pay", "shout")), False, id="another-action"),
    ],
)
def test_constraints_narrow_on_the_way_down(asked: Constraints, ok: bool) -> None:
    own = Constraints(max_resolution_time_s=60, allowed_actions=("look", "pay"))
    court = Court()
    court.submit(constraints=own)
    event = court.move(transfer("b", constraints=asked))
    if ok:
        given = admitted(event).work.handoff.constraints
        assert given.deadline is not None
        assert given.deadline <= START + seconds(60)
        assert set(given.allowed_actions or ()) <= {"look", "pay"}
        assert given.max_resolution_time_s is None
    else:
        assert refused(event).rule == Rule.CONSTRAINTS


def test_a_widening_is_refused_with_its_numbers() -> None:
    court = Court()
    court.submit(constraints=Constraints(max_resolution_time_s=60, allowed_actions=("look",)))
    late = refused(court.move(transfer("b", constraints=Constraints(max_resolution_time_s=61.5))))
    assert late.numbers == {"deadline": START + seconds(61.5), "own_deadline": START + seconds(60)}
    assert "1.5 s after" in late.detail
    more = refused(court.move(transfer("b", constraints=Constraints(allowed_actions=("z", "pay")))))
    assert more.numbers == {"more": ["pay", "z"], "own": ["look"]}
    assert more.hint == "a part of the proposer's own actions"


def test_whoever_has_no_limit_may_set_one_and_what_is_not_asked_for_is_inherited() -> None:
    court = opened()
    court.move(transfer("b", constraints=Constraints(allowed_actions=("pay", "look"))))
    assert court.holder.work.handoff.constraints.allowed_actions == ("look", "pay")
    court.move(transfer("c"))
    assert court.holder.work.handoff.constraints.allowed_actions == ("look", "pay")


# --- must_carry -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("move", "lost"),
    [
        pytest.param(transfer("b", drop=("text",)), ["text"], id="dropped"),
        pytest.param(transfer("b", fact("text", "else")), ["text"], id="changed"),
        pytest.param(transfer("b", fact("one", True)), ["one"], id="changed-in-type"),
        pytest.param(transfer("b", fact("one", 2), drop=("text",)), ["one", "text"], id="both"),
        pytest.param(
            transfer("b", constraints=Constraints(must_carry=("gone",))), ["gone"], id="asked-but-not-there"
        ),
    ],
)
def test_a_must_carry_fact_is_carried_unchanged(move: Transfer, lost: list[str]) -> None:
    court = Court()
    court.submit(facts=(fact("one", 1),), constraints=Constraints(must_carry=("text", "one")))
    refusal = refused(court.move(move))
    assert (refusal.rule, refusal.numbers) == (Rule.MUST_CARRY, {"keys": lost})
    assert refusal.hint == "carry them unchanged; put another finding under another key"


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(transfer("b"), id="left-alone"),
        pytest.param(transfer("b", fact("one", 1)), id="said-again"),
        pytest.param(transfer("b", drop=("free",)), id="another-is-dropped"),
        pytest.param(transfer("b", fact("one", 1), drop=("one",)), id="dropped-and-brought"),
        pytest.param(transfer("b", NEW, constraints=Constraints(must_carry=("new",))), id="asked-for"),
    ],
)
def test_what_keeps_the_must_carry_facts_is_admitted(move: Transfer) -> None:
    court = Court()
    court.submit(facts=(fact("one", 1), fact("free", 1)), constraints=Constraints(must_carry=("text", "one")))
    event = admitted(court.move(move))
    assert set(event.work.handoff.constraints.must_carry) >= {"text", "one"}


def test_must_carry_holds_all_the_way_down_but_a_hand_back_restores_the_frames_own() -> None:
    court = opened()
    court.move(transfer("b", fact("k", 1), constraints=Constraints(must_carry=("k",))))
    court.move(transfer("c"))
    assert refused(court.move(hand_back(drop=("k",)))).rule == Rule.MUST_CARRY
    court.move(hand_back())
    assert refused(court.move(hand_back(drop=("k",)))).rule == Rule.MUST_CARRY  # b's own still
    court.move(hand_back())
    assert court.holder.work.handoff.constraints.must_carry == ()
    admitted(court.move(transfer("d", drop=("k",))))


# --- actions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "move",
    [transfer("b"), ask(), escalate(), complete(), give_up()],
    ids=lambda move: type(move).__name__,
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
    move: Move,
    entry: tuple[str, ...] | None,
    own: tuple[str, ...] | None,
    called: tuple[str, ...],
    over: list[str],
) -> None:
    court = Court(fleet={"a": agent("a", actions=entry), "b": agent("b")})
    court.submit(constraints=Constraints(allowed_actions=own))
    event = court.move(move, Report(actions=called))
    if over:
        refusal = refused(event)
        assert (refusal.rule, refusal.numbers["over"]) == (Rule.ACTIONS, over)
        limits = [set(limit) for limit in (entry, own) if limit is not None]
        assert refusal.numbers["allowed"] == sorted(set.intersection(*limits))
        assert "escalate" in refusal.hint
    else:
        assert not isinstance(event, MoveRefused)


# --- size -----------------------------------------------------------------------------------------


def test_a_handoff_of_just_the_largest_size_is_admitted_and_a_byte_more_is_not() -> None:
    court = opened()
    event = admitted(court.move(transfer("b", fact("k", "x" * 1000))))
    largest = len(msgspec.json.encode(event.work.handoff))
    court = opened(policy=Policy(max_handoff_bytes=largest))
    refusal = refused(court.move(transfer("b", fact("k", "x" * 1001))))
    assert refusal.rule == Rule.SIZE
    assert refusal.numbers == {"bytes": largest + 1, "max_handoff_bytes": largest}
    assert "artifacts" in refusal.hint
    admitted(court.move(transfer("b", fact("k", "x" * 1000))))


def test_the_size_is_that_of_the_whole_handoff_with_what_its_reader_will_not_see() -> None:
    court = opened(policy=Policy(max_handoff_bytes=2000))
    assert refused(court.move(transfer("b", fact("k", "x" * 2000, "pii")))).rule == Rule.SIZE


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(complete("x" * 3000), id="an-answer"),
        pytest.param(Fail(reason="x" * 3000), id="a-reason"),
        pytest.param(Ask(to_agent=AgentName("c1"), question="x" * 3000), id="a-question"),
        pytest.param(escalate(fact("k", "x" * 3000)), id="an-escalation"),
    ],
)
def test_every_other_move_has_the_same_largest_size(move: Move) -> None:
    assert refused(opened(policy=Policy(max_handoff_bytes=2000)).move(move)).rule == Rule.SIZE


def test_artifacts_are_the_way_for_large_things() -> None:
    big = Artifact(name="scan", uri="s3://bucket/scan", size=1 << 40)
    admitted(opened(policy=Policy(max_handoff_bytes=2000)).move(transfer("b", artifacts=(big,))))


# --- every refusal --------------------------------------------------------------------------------


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
