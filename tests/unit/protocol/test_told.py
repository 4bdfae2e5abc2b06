"""What an end tells the client of cost and path, as far as the policy allows; with the same on replay."""

import pytest

from mesh.client.follow import outcome_of
from mesh.replay.rejudge import rejudge
from protocol.domain.envelope import MOST_TOLD
from protocol.wire import codec, events
from protocol.wire.commands import Cancel, Resolve, Usage
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Budget
from protocol.wire.prices import Metered
from tests.certain import is_
from tests.unit.protocol.worlds import (
    Play,
    complete,
    escalate,
    fact,
    give_up,
    hand_back,
    transfer,
    usage,
)

TELLS = Policy(tell_client=("usage", "path"))


def begun(policy: Policy = TELLS) -> Play:
    """Play a request up to `a`, `b`, `a`: 20 tokens are spent and reported."""
    play = Play(policy=policy)
    play.submit()
    play.move(transfer("b"), usage(tokens=5, model_calls=1))
    play.move(hand_back(fact("found", 1)), usage(tokens=15, nano_dollars=7, model_calls=2))
    return play


def told(event: AnyEvent) -> tuple[int | None, list[str]]:
    """Return the tokens and the path that a client is told, read from the bytes."""
    read = codec.decode_event(codec.encode(event))
    assert isinstance(read, events.Ended)
    outcome = outcome_of(read)
    return None if outcome.usage is None else outcome.usage.tokens, list(outcome.path)


def test_an_answer_tells_the_whole_cost_with_the_last_report_and_the_holders_in_order() -> None:
    play = begun()
    end = play.move(complete(), usage(tokens=30, nano_dollars=1, model_calls=4))
    assert told(end) == (50, ["a", "b", "a"])
    assert is_(end, events.RequestCompleted).usage == play.ledger.spent
    assert rejudge(play.bodies).same


def test_reports_are_cumulative_over_the_rounds_of_a_turn_and_count_once() -> None:
    play = Play(policy=TELLS)
    play.submit()
    play.move(transfer("nobody"), usage(tokens=10))
    assert told(play.move(complete(), usage(tokens=12))) == (12, ["a"])


def test_the_models_that_were_used_are_told() -> None:
    play, each = Play(policy=TELLS), Metered(input=3, output=2, calls=1)
    play.submit()
    report = usage(tokens=5, model_calls=1)
    spent = Usage(tokens=5, model_calls=1, models={"m": each})
    end = is_(play.move(complete(), type(report)(usage=spent)), events.RequestCompleted)
    assert outcome_of(end).usage == spent


@pytest.mark.parametrize("how", ["failed", "cancelled", "expired", "by a person", "exhausted"])
def test_every_other_end_tells_it_too(how: str) -> None:
    play = begun()
    if how == "failed":
        end, path = play.move(give_up(), usage(tokens=1)), ["a", "b", "a"]
        expected = 21
    elif how == "cancelled":
        end, path, expected = play.control(Cancel, sender="c1"), ["a", "b", "a"], 20
    elif how == "expired":
        end, path, expected = play.wait(86_400.0)[-1], ["a", "b", "a"], 20
    elif how == "by a person":
        play.move(escalate(), usage(tokens=2))
        end = play.control(Resolve, turn=play.turn, complete=True, answer=1)
        path, expected = ["a", "b", "a", "human"], 22
    else:
        play.human = False
        end, path, expected = play.fail(permanent=True, report=usage(tokens=2)), ["a", "b", "a"], 22
        end = play.events[-1]
    assert told(end) == (expected, path)
    assert rejudge(play.bodies).same


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(), (None, [])),
        (Policy(tell_client=("usage",)), (50, [])),
        (Policy(tell_client=("path",)), (None, ["a", "b", "a"])),
    ],
    ids=["nothing", "usage", "path"],
)
def test_a_client_is_told_what_the_policy_names_and_nothing_by_default(
    policy: Policy, expected: tuple[int | None, list[str]]
) -> None:
    end = begun(policy).move(complete(), usage(tokens=30))
    assert told(end) == expected
    for name in {"usage", "path"} - set(policy.tell_client):
        assert f'"{name}":'.encode() not in codec.encode(end)


def test_a_turn_that_never_reported_counts_with_all_that_it_was_charged() -> None:
    play = Play(policy=Policy(tell_client=("usage",), budget=Budget(tokens=100), max_retries=0))
    play.submit()
    play.wait(900.0)
    play.control(Resolve, turn=play.turn, complete=True, answer=1)
    assert told(play.events[-1]) == (play.ledger.spent.tokens, [])
    assert play.ledger.spent.tokens == 100


def test_of_a_long_path_the_newest_holders_are_told() -> None:
    play = Play(policy=Policy(tell_client=("path",), max_depth=MOST_TOLD + 50))
    play.submit()
    for number in range(MOST_TOLD + 10):
        play.move(hand_back(fact("n", number)) if number % 2 else transfer("b", fact("n", number)))
    _, path = told(play.move(complete()))
    assert len(path) == MOST_TOLD
    assert path[-2:] == ["b", "a"]
