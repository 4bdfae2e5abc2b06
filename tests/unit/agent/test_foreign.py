"""Rounds of another version: left to it for a while, and remembered for no longer than they matter."""

from collections.abc import Callable

import pytest

from mesh.agent._executor import LOST_S, ForeignRounds


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def coming(rounds: ForeignRounds, clock: Clock, grace_s: float, turn: str = "t") -> Callable[[float], bool]:
    """Return what says, at so many seconds, whether a round that comes then is left to its version."""
    began = clock.now

    def comes(at: float) -> bool:
        clock.now = began + at
        return rounds.leaves(turn, 0, grace_s)

    return comes


def test_a_round_is_left_to_its_version_for_the_grace_and_then_taken(clock: Clock) -> None:
    rounds = ForeignRounds(clock)
    comes = coming(rounds, clock, 30.0)
    assert [comes(at) for at in (0, 10, 29, 31)] == [True, True, True, False]
    assert len(rounds) == 0


def test_a_round_that_is_over_is_forgotten(clock: Clock) -> None:
    rounds = ForeignRounds(clock)
    coming(rounds, clock, 30.0)(0)
    rounds.forget("t", 0)
    rounds.forget("t", 0)
    assert len(rounds) == 0


@pytest.mark.parametrize("grace_s", [5.0, 600.0])
def test_a_round_that_others_have_taken_is_forgotten_in_the_end(clock: Clock, grace_s: float) -> None:
    rounds = ForeignRounds(clock)
    lost, other = coming(rounds, clock, grace_s, "lost"), coming(rounds, clock, grace_s, "other")
    kept_s = max(grace_s, LOST_S)
    assert lost(0)
    assert other(kept_s - 1)
    assert len(rounds) == 2
    assert other(kept_s + 1)  # another one that comes is the occasion
    assert len(rounds) == 1
