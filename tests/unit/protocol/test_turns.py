"""What later rounds are told of earlier ones: always enough, never much."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.domain.turns import MAX_MOVE_BYTES, next_round, remembered, retry_at
from protocol.wire import ids
from protocol.wire.commands import Failure
from protocol.wire.config import Policy
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.events import TurnRetried
from protocol.wire.handoff import Constraints, Refusal, Rule
from protocol.wire.ids import AgentName
from protocol.wire.moves import MAX_TEXT_CHARS, Complete, Fail, Transfer
from tests.certain import is_, known
from tests.unit.protocol.worlds import START, ask, escalate, fact, hand_back, opened, transfer, usage

LONG = "x" * 300_000
REFUSED = Refusal(rule=Rule.KNOWN_AGENT, detail="no", numbers={"target": "b"}, hint="another")


def refused(move: Any, refusal: Refusal = REFUSED) -> RoundOutcome:
    return RoundOutcome(round=0, how="refused", move=move, refusal=refusal)


@pytest.mark.parametrize(
    "past",
    [
        RoundOutcome(
            round=0, how="failed", failure=Failure(code="boom", message="no answer", permanent=True)
        ),
        refused(transfer("b", fact("k", "x" * 1000), no_return=True)),
        refused(escalate(fact())),
        RoundOutcome(round=1, how="replied", reply=LONG, by="kim", asked="d"),
        RoundOutcome(round=2, how="settled", settled="done", step="0-3", by="kim"),
        RoundOutcome(round=3, how="expired"),
    ],
    ids=["failed", "transfer", "escalate", "replied", "settled", "expired"],
)
def test_what_is_short_or_a_reply_is_told_whole(past: RoundOutcome) -> None:
    assert remembered(past) == past


MOVES = {
    "summary": transfer("b", summary=LONG),
    "target": transfer(LONG),
    "facts": transfer("b", fact("k", LONG), no_return=True),
    "constraints": transfer("b", constraints=Constraints(allowed_actions=(LONG,))),
    "keys": transfer("b", drop=(LONG,)),
    "back": hand_back(fact("k", LONG), to=LONG),
    "escalate": escalate(fact("k", LONG)),
    "question": msgspec.structs.replace(ask(), question=LONG),
    "schema": ask(schema={"type": LONG}),
    "answer": Complete(answer=LONG),
    "reason": Fail(reason=LONG),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_large_move_keeps_what_it_was_and_loses_its_load(move: Any) -> None:
    told = remembered(refused(move))
    assert type(told.move) is type(move)
    assert len(msgspec.json.encode(told.move)) <= MAX_MOVE_BYTES
    assert told.refusal == REFUSED
    assert remembered(told) == told


def test_the_rest_of_a_move_that_only_lost_its_load_stays() -> None:
    told = remembered(refused(MOVES["facts"]))
    assert told.move == Transfer(to_agent=AgentName("b"), summary="please", no_return=True)


def test_long_texts_are_cut_where_they_are_told_again() -> None:
    told = remembered(
        RoundOutcome(
            round=0,
            how="failed",
            failure=Failure(code=LONG, message=LONG, permanent=True, retry_after_s=3.0),
            refusal=Refusal(rule=Rule.CYCLE, detail=LONG, hint=LONG, numbers={"path": [LONG]}),
        )
    )
    assert told.failure is not None
    assert told.refusal is not None
    texts = (told.failure.code, told.failure.message, told.refusal.detail, told.refusal.hint)
    assert [len(text) for text in texts] == 4 * [MAX_TEXT_CHARS]
    assert (told.failure.permanent, told.failure.retry_after_s) == (True, 3.0)
    assert told.refusal.numbers == {}
    assert remembered(told) == told


def test_rounds_that_say_much_do_not_pile_up() -> None:
    play = opened(policy=Policy(max_retries=50, max_refusals=50))
    for _ in range(20):
        play.move(transfer("nobody", summary=LONG))
        play.fail(LONG)
        is_(play.wait(120)[-1], TurnRetried)
    assert len(play.bodies[-1]) < 20 * 12_000
    assert [past.how for past in play.holder.past] == 20 * ["refused", "failed"]


PATIENT = Policy(max_retries=99)


def wait(failures: int, cause: str = "x", **error: float) -> float:
    """Return the seconds until the retry."""
    turn = opened().holder
    turn.failures = failures
    at = retry_at(turn, Failure(code="boom", **error), PATIENT, START, cause)  # type: ignore[arg-type]
    return (known(at) - START) / 1e6


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
