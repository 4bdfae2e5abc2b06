"""Sums of reports: whatever agents report, an event that a guard stores can be read back."""

import itertools
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.replay.rejudge import rejudge
from protocol.domain import budget
from protocol.domain.request_state import RequestState
from protocol.domain.turns import TurnState, summed_up
from protocol.wire import codec, prices
from protocol.wire.commands import Cancel, Report, Usage
from protocol.wire.errors import Malformed
from protocol.wire.events import MoveRefused, RequestCancelled
from protocol.wire.prices import LARGEST_AMOUNT, MAX_MODELS, OTHER_MODELS, Metered, each_model
from tests.certain import is_
from tests.unit.protocol.tree_stories import STEPS, Teller
from tests.unit.protocol.trees import delegate, deliver, say, task, tree
from tests.unit.protocol.worlds import Play, opened, transfer, usage

MANY = tuple(f"model-{number:02}" for number in range(40))


def used(*names: str, tokens: int = 1) -> Report:
    models = {name: Metered(input=tokens, calls=1) for name in names}
    return Report(usage=Usage(tokens=tokens * len(names), model_calls=len(names), models=models))


def all_read_back(play: Play) -> bool:
    for body in play.bodies:
        codec.decode_event(body)
    return rejudge(play.bodies).same


# --- many models ------------------------------------------------------------------------------------


def test_models_beyond_the_bound_count_as_other() -> None:
    play = opened()
    play.move(transfer("nobody"), used(*MANY[:MAX_MODELS]))
    refused = is_(play.move(transfer("nobody"), used(*MANY[MAX_MODELS:])), MoveRefused)
    assert refused.work is not None
    models = refused.work.reported.usage.models
    assert len(models) == MAX_MODELS
    assert models[OTHER_MODELS] == Metered(input=8, calls=8)
    assert play.ledger.spent.models.keys() == models.keys()
    assert all_read_back(play)


def test_two_workers_name_more_models_together_than_one_account_holds() -> None:
    play = tree(task("part", "b"))
    say(play, "part", delegate(task("one", "c"), task("two", "d")))
    say(play, "one", deliver(), used(*MANY[:17]))
    say(play, "two", deliver(), used(*MANY[17:34]))
    say(play, "part", deliver())
    told = play.holder.work.results[0].cost
    assert (len(told.models), told.models[OTHER_MODELS].calls, told.model_calls) == (MAX_MODELS, 3, 34)
    assert all_read_back(play)


accounts = st.dictionaries(
    st.sampled_from([*MANY, OTHER_MODELS]),
    st.builds(Metered, input=st.integers(0, 9), calls=st.integers(0, 9)),
)


def summed(models: Mapping[str, Metered]) -> tuple[int, int]:
    return sum(each.input for each in models.values()), sum(each.calls for each in models.values())


@given(st.lists(accounts, max_size=5))
def test_reports_over_many_rounds_add_up_whatever_models_they_name(rounds: list[dict[str, Metered]]) -> None:
    turn = opened().holder
    spent = budget.NOTHING
    for models in rounds:
        report = Report(usage=Usage(models=models))
        more = RequestState.more(turn, report)
        assert all(min(each.input, each.calls) >= 0 for each in more.models.values())
        spent = budget.plus(spent, more)
        turn.report = summed_up(turn, report)
        assert len(turn.report.usage.models) <= max(MAX_MODELS, len(models))
    assert summed(spent.models) == summed(turn.report.usage.models)


@given(st.lists(accounts, max_size=6))
def test_a_sum_of_accounts_holds_all_of_them(some: list[dict[str, Metered]]) -> None:
    total = budget.total(Usage(models=models) for models in some)
    every = [summed(models) for models in some]
    assert summed(total.models) == (sum(one for one, _ in every), sum(two for _, two in every))
    assert (
        len(total.models) <= MAX_MODELS or len(some) < 2 or any(len(models) > MAX_MODELS for models in some)
    )


# --- large amounts ----------------------------------------------------------------------------------

HUGE = Report(
    usage=Usage(
        tokens=LARGEST_AMOUNT,
        nano_dollars=LARGEST_AMOUNT,
        model_calls=LARGEST_AMOUNT,
        models={"m": Metered(input=LARGEST_AMOUNT, calls=LARGEST_AMOUNT)},
    )
)


def test_workers_that_report_the_largest_amounts() -> None:
    names = ("b", "c", "d", "e", "f")
    play = tree(*(task(name, name) for name in names))
    for name in names:
        say(play, name, deliver(), HUGE)
    assert play.holder.work.committed.tokens == LARGEST_AMOUNT
    assert play.ledger.spent.models["m"].input == LARGEST_AMOUNT
    is_(play.control(Cancel), RequestCancelled)
    assert all_read_back(play)


def test_two_levels_that_report_the_largest_amounts() -> None:
    play = tree(task("one", "b"))
    say(play, "one", delegate(task("two", "c")))
    say(play, "two", deliver(), HUGE)
    say(play, "one", deliver(), HUGE)
    assert play.holder.work.results[0].cost.tokens == LARGEST_AMOUNT
    assert all_read_back(play)


# --- what none of this has foreseen -----------------------------------------------------------------


class Liar(Teller):
    """A story whose agents report anything that a proposal may say."""

    def report(self, turn: TurnState) -> Report:
        def amount() -> int:
            return self.draw.choice([0, 1, 1000, LARGEST_AMOUNT // 2, LARGEST_AMOUNT])

        names = self.draw.sample(MANY, self.draw.choice([0, 1, 20, MAX_MODELS]))
        models = {name: Metered(input=amount(), nano_dollars=amount(), calls=amount()) for name in names}
        spent = Usage(tokens=amount(), nano_dollars=amount(), model_calls=amount(), models=models)
        return Report(usage=spent, steps=amount())

    def lie(self) -> Iterator[str]:
        """Yield what replay finds wrong. A play itself raises for an event that cannot be read back."""
        for _ in range(STEPS):
            if self.play.ledger.is_open:
                self.step()
                self.learn()
        judged = rejudge(self.play.bodies)
        if not judged.same:
            yield str(judged)


def lies(count: int) -> Iterator[str]:
    return itertools.chain.from_iterable(Liar(seed).lie() for seed in range(count))


def test_every_event_is_read_back_whatever_agents_report() -> None:
    assert list(lies(60)) == []


@pytest.mark.parametrize("gone", ["the clamp", "the merging"])
def test_a_sum_that_is_not_bounded_is_refused_as_too_large(
    gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a bound on sums, the check before an event is stored is enough."""
    if gone == "the clamp":
        monkeypatch.setattr(budget, "LARGEST_AMOUNT", 1 << 80)
        monkeypatch.setattr(prices, "LARGEST_AMOUNT", 1 << 80)
    else:
        monkeypatch.setattr(prices, "MAX_MODELS", 10_000)
    assert list(lies(30)) == []
    monkeypatch.setattr("protocol.domain.decider.is_readable", lambda event: True)
    with pytest.raises((Malformed, OverflowError)):
        list(lies(30))


def test_a_report_as_large_as_a_message_may_have_it_is_kept_as_it_is() -> None:
    play = opened()
    play.move(transfer("nobody"), used(*MANY[:MAX_MODELS]))
    assert set(play.ledger.spent.models) == set(MANY[:MAX_MODELS])
    assert each_model({}, {}, max) == {}
    play.move(transfer("nobody"), usage(tokens=1))
    assert set(play.ledger.spent.models) == set(MANY[:MAX_MODELS])
