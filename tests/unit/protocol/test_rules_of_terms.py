"""What a handoff hands down: no more than the giver has, and the facts that must be carried."""

import msgspec
import pytest

from protocol.wire.commands import Report, Transfer, Usage
from protocol.wire.config import Policy
from protocol.wire.events import EscalationRaised, RequestRefused
from protocol.wire.handoff import Budget, Constraints, Fact, Rule
from tests.unit.protocol.happened import admitted, refused
from tests.unit.protocol.worlds import START, Court, escalate, fact, hand_back, is_, opened, seconds, transfer

NEW = fact("new", 1)


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


@pytest.mark.parametrize("asked", [None, Budget(tokens=0), Budget(nano_dollars=1)])
def test_who_has_spent_more_than_it_may_gives_nothing_on(asked: Budget | None) -> None:
    court = opened(policy=Policy(budget=Budget(tokens=100, nano_dollars=9)))
    spent = Report(usage=Usage(tokens=130))
    refusal = refused(court.move(transfer("b", constraints=Constraints(budget=asked)), spent))
    assert (refusal.rule, refusal.numbers) == (Rule.BUDGET, {"tokens": {"left": -30}})
    assert "tokens: 30 too many" in refusal.detail
    assert refusal.hint == "complete, hand_back or escalate: a person may grant more"


def test_who_has_spent_all_but_no_more_may_give_work_on() -> None:
    court = opened(policy=Policy(budget=Budget(tokens=100)))
    event = court.move(transfer("b"), Report(usage=Usage(tokens=100)))
    assert admitted(event).work.handoff.constraints.budget == Budget(tokens=0)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(Constraints(deadline=START + seconds(5)), id="now"),
        pytest.param(Constraints(deadline=START + seconds(1)), id="before"),
        pytest.param(Constraints(max_resolution_time_s=0), id="a-span-of-nothing"),
    ],
)
def test_a_deadline_that_is_not_ahead_is_refused_as_a_submits_is(asked: Constraints) -> None:
    court = opened()
    court.now += seconds(5)
    refusal = refused(court.move(transfer("b", constraints=asked)))
    assert refusal.rule == Rule.CONSTRAINTS
    assert refusal.numbers["now"] == court.now
    assert refusal.numbers["deadline"] <= court.now
    assert "s ago" in refusal.detail
    assert refusal.hint == "a later deadline, or none"
    submitted = Court(now=court.now).submit(constraints=asked)
    assert is_(submitted, RequestRefused).refusal == refusal


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


@pytest.mark.parametrize(
    ("brought", "ok"),
    [
        pytest.param(fact("one", 2), False, id="changed"),
        pytest.param(fact("one", 1), True, id="said-again"),
        pytest.param(fact("two", 2), True, id="another"),
    ],
)
def test_an_escalation_does_not_change_what_must_be_carried(brought: Fact, ok: bool) -> None:
    court = Court()
    court.submit(facts=(fact("one", 1),), constraints=Constraints(must_carry=("one",)))
    event = court.move(escalate(brought))
    assert court.ledger.carried()["one"].value == 1
    if ok:
        is_(event, EscalationRaised)
    else:
        refusal = refused(event)
        assert (refusal.rule, refusal.numbers) == (Rule.MUST_CARRY, {"keys": ["one"]})


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
