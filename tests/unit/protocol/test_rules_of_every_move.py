"""What holds of every move: its name, what its turn asked and did before, and how large it is."""

import msgspec
import pytest

from protocol.wire.commands import HANDOFF_MOVES, Ask, Fail, Move, Report, UnknownMove
from protocol.wire.config import Policy
from protocol.wire.events import MoveRefused, RequestCompleted, TurnSuspended
from protocol.wire.handoff import Artifact, Constraints, Rule
from protocol.wire.ids import AgentName
from tests.unit.protocol.happened import admitted, refused
from tests.unit.protocol.worlds import (
    Court,
    agent,
    ask,
    complete,
    escalate,
    fact,
    give_up,
    hand_back,
    is_,
    opened,
    transfer,
)


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


@pytest.mark.parametrize("own", [None, ("look", "pay")])
def test_an_agent_that_has_left_the_fleet_may_call_nothing(own: tuple[str, ...] | None) -> None:
    court = Court(fleet={"a": agent("a"), "b": agent("b")})
    court.submit(constraints=Constraints(allowed_actions=own))
    del court.fleet["a"]
    refusal = refused(court.move(complete(), Report(actions=("pay",))))
    assert refusal.rule == Rule.ACTIONS
    assert refusal.numbers == {"over": ["pay"], "allowed": []}
    assert refusal.detail == (
        "the turn reports actions that are not allowed: pay, and a is not in the fleet any more"
    )


def test_of_an_agent_that_is_in_the_fleet_nothing_else_is_said() -> None:
    court = opened(fleet={"a": agent("a", actions=())})
    assert refused(court.move(complete(), Report(actions=("pay",)))).detail.endswith("not allowed: pay")


def test_an_agent_that_has_left_the_fleet_may_still_say_what_it_knows() -> None:
    court = opened(fleet={"a": agent("a"), "b": agent("b")})
    del court.fleet["a"]
    is_(court.move(complete()), RequestCompleted)


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
