"""When a failed round is tried again: backoff, jitter, and what ends it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.domain.turns import next_round, retry_at
from protocol.wire import ids
from protocol.wire.commands import Failure
from protocol.wire.config import Policy
from tests.unit.protocol.worlds import START, opened, usage

PATIENT = Policy(max_retries=99)


def wait(failures: int, cause: str = "x", **error: float) -> float:
    """Return the seconds until the retry."""
    turn = opened().holder
    turn.failures = failures
    at = retry_at(turn, Failure(code="boom", **error), PATIENT, START, cause)  # type: ignore[arg-type]
    assert at is not None
    return (at - START) / 1e6


@pytest.mark.parametrize(
    ("failures", "longest"), [(0, 1.0), (1, 2.0), (2, 4.0), (5, 32.0), (6, 60.0), (98, 60.0)]
)
def test_the_wait_doubles_up_to_its_most_and_half_of_it_is_drawn(failures: int, longest: float) -> None:
    waits = [wait(failures, f"cause-{n}") for n in range(40)]
    assert all(longest / 2 <= each < longest for each in waits)
    assert max(waits) - min(waits) > longest / 4  # they do not come back together


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_the_jitter_is_drawn_from_the_failures_own_id_whatever_it_is(cause: str) -> None:
    assert wait(0, cause) == wait(0, cause) == pytest.approx(0.5 + 0.5 * ids.draw("jitter", cause), abs=1e-6)


@pytest.mark.parametrize(
    ("retry_after_s", "expected"),
    [pytest.param(0.0, None, id="earlier"), pytest.param(30.0, 30.0, id="later")],
)
def test_a_retry_after_can_only_make_it_later(retry_after_s: float, expected: float | None) -> None:
    assert wait(0, retry_after_s=retry_after_s) == (wait(0) if expected is None else expected)


def test_a_retry_after_may_be_longer_than_any_backoff() -> None:
    assert wait(0, retry_after_s=7200.0) == 7200.0


def test_a_permanent_failure_is_not_tried_again() -> None:
    turn = opened().holder
    error = Failure(code="boom", permanent=True, retry_after_s=5)
    assert retry_at(turn, error, Policy(), START, "x") is None


@pytest.mark.parametrize(("failures", "again"), [(0, True), (1, True), (2, False), (3, False)])
def test_a_turn_gets_max_retries_more_rounds(failures: int, again: bool) -> None:
    turn = opened().holder
    turn.failures = failures
    at = retry_at(turn, Failure(code="boom"), Policy(max_retries=2), START, "x")
    assert (at is not None) is again


def test_the_next_round_has_the_same_handoff_and_what_was_reported() -> None:
    turn = opened().holder
    turn.report = usage(tokens=3)
    work = next_round(turn, None)
    assert (work.round, work.handoff, work.turn) == (1, turn.work.handoff, turn.id)
    assert work.reported == usage(tokens=3)
    assert next_round(turn, None, usage(tokens=9)).reported == usage(tokens=9)
