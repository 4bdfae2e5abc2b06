"""Where on its path work may go: how far, not in circles, back to whom, and what a seal keeps."""

from typing import Any

import pytest

from protocol.wire.commands import Resolve
from protocol.wire.config import Policy
from protocol.wire.handoff import Rule
from tests.unit.protocol.happened import admitted, refused
from tests.unit.protocol.worlds import Court, agents, ask, escalate, fact, hand_back, opened, transfer

NEW = fact("new", 1)


@pytest.mark.parametrize("most", [1, 2, 3, 5])
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
