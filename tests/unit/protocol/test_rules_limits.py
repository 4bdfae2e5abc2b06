"""The rules of limits: asks, budgets, constraints, what must be carried, actions, size."""

from typing import Any

import msgspec
import pytest

from protocol.wire.commands import Report, Usage
from protocol.wire.config import Policy
from protocol.wire.events import EscalationRaised, RequestCompleted, RequestRefused, TurnFailed, TurnSuspended
from protocol.wire.handoff import Artifact, Budget, Constraints, Rule
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Escalate, Fail, Move
from tests.certain import is_, known
from tests.unit.protocol.happened import admitted, refused, rule_of
from tests.unit.protocol.worlds import (
    START,
    Play,
    agent,
    ask,
    asked,
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
        assert known(given.deadline) <= START + seconds(60)
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
        pytest.param(
            transfer("b", fact("new", 1), constraints=asked(must_carry=("new",))), [], id="asked-for"
        ),
        pytest.param(escalate(fact("one", 1)), [], id="said-again-by-an-escalation"),
        pytest.param(escalate(fact("two", 2)), [], id="an-escalation-brings-another"),
    ],
)
def test_a_must_carry_fact_is_carried_unchanged(move: Move, lost: list[str]) -> None:
    play = told(fact("one", 1), fact("free", 1), must_carry=("text", "one"))
    event = play.move(move)
    assert play.ledger.carried().facts["one"].value == 1
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
    "move", [transfer("b"), ask(), escalate(), complete(), give_up()], ids=lambda move: type(move).__name__
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
    assert is_(play.events[-2], TurnFailed).error.code == "agent_removed"  # no round more


def test_what_an_agent_said_before_it_left_the_fleet_counts() -> None:
    play = opened()
    del play.fleet["a"]
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
