"""The rules of the path: cycles, ways back, seals."""

from typing import Any

import pytest

from protocol.wire.commands import Resolve
from protocol.wire.handoff import Rule
from tests.unit.protocol.happened import admitted, refused
from tests.unit.protocol.worlds import Play, agent, escalate, fact, hand_back, opened, played, transfer

NEW = fact("new", 1)


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


def test_another_value_under_a_labelled_key_is_new_if_its_bringer_may_see_the_key() -> None:
    fleet = {"a": agent("a", clearance=("pii",)), "b": agent("b")}
    play = played(transfer("b", fact("ssn", 1, "pii")), hand_back(), fleet=fleet)
    assert refused(play.move(transfer("b", fact("ssn", 1, "pii")))).rule == Rule.CYCLE
    admitted(play.move(transfer("b", fact("ssn", 2, "pii"))))


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
        assert (refusal.rule, refusal.numbers) == (Rule.HAND_BACK, {"path": ["a", "b", "c"]})
        assert refusal.hint == f"hand_back to {return_to or 'b'}, or leave the target out"
        return
    work = admitted(event).work
    assert (work.handoff.to_agent, work.depth) == (goes_to, 3)
    assert list(work.path) == ["a", "b"][: ["a", "b"].index(goes_to) + 1]


def test_a_resumed_frame_keeps_its_giver_and_its_own_return_to() -> None:
    play = played(transfer("b"), transfer("c", return_to="a"), transfer("d"), hand_back())
    assert (play.holder.agent, play.holder.segment.top.giver) == ("c", "b")
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
