"""Budgets as ceilings: whatever is granted and spent, in whatever order, the sums come out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.domain import budget
from protocol.wire.commands import Usage
from protocol.wire.handoff import Budget

amounts = st.integers(0, 1000)
limits = st.one_of(st.none(), amounts)
budgets = st.builds(Budget, nano_dollars=limits, tokens=limits, model_calls=limits)
usages = st.builds(Usage, nano_dollars=amounts, tokens=amounts, model_calls=amounts)


def test_what_is_left_is_the_ceiling_less_what_was_spent() -> None:
    ceiling = budget.ceiling(Budget(tokens=100), Usage(tokens=40))
    assert ceiling == Budget(tokens=140)
    assert budget.left(ceiling, Usage(tokens=60)) == Budget(tokens=80)
    assert budget.left(ceiling, Usage(tokens=150)) == Budget(tokens=-10)
    assert budget.left(Budget(), Usage(tokens=5)) == Budget()


@given(budgets, usages)
def test_a_grant_that_was_just_made_is_left_whole(granted: Budget, spent: Usage) -> None:
    assert budget.left(budget.ceiling(granted, spent), spent) == granted


@given(budgets, budgets, usages, usages)
def test_a_narrower_grant_is_never_more_than_the_one_it_is_from(
    own: Budget, asked: Budget, before: Usage, later: Usage
) -> None:
    rest = budget.left(budget.ceiling(own, Usage()), before)
    if budget.excess(asked, rest):
        return
    inner = budget.left(budget.ceiling(budget.grant(asked, rest), before), budget.plus(before, later))
    outer = budget.left(budget.ceiling(own, Usage()), budget.plus(before, later))
    for name in ("nano_dollars", "tokens", "model_calls"):
        mine, theirs = getattr(inner, name), getattr(outer, name)
        assert theirs is None or (mine is not None and mine <= theirs)


@given(usages, usages)
def test_plus_undoes_minus(one: Usage, other: Usage) -> None:
    assert budget.plus(budget.minus(one, other), other) == one


@given(usages, usages)
def test_the_larger_is_never_less_than_either(one: Usage, other: Usage) -> None:
    most = budget.larger(one, other)
    assert most == budget.larger(other, one)
    for name in ("nano_dollars", "tokens", "model_calls"):
        assert getattr(most, name) == max(getattr(one, name), getattr(other, name))


def test_a_whole_grant_is_what_is_left_and_never_less_than_nothing() -> None:
    assert budget.whole(Budget(tokens=5, nano_dollars=-3)) == Usage(tokens=5)
    assert budget.whole(Budget(tokens=-5, nano_dollars=3)) == Usage(nano_dollars=3)
    assert budget.whole(Budget(model_calls=-1)) == Usage()


def test_a_budget_that_limits_nothing_is_not_shown() -> None:
    assert budget.public(Budget()) is None
    assert budget.public(Budget(tokens=0)) == Budget(tokens=0)


@pytest.mark.parametrize("name", Budget.__struct_fields__)
def test_a_rest_is_overdrawn_where_it_is_below_nothing_and_not_at_it(name: str) -> None:
    assert budget.overdrawn(Budget(**{name: -3})) == {name: 3}
    assert budget.overdrawn(Budget(**{name: -1})) == {name: 1}
    assert budget.overdrawn(Budget(**{name: 0})) == {}
    assert budget.overdrawn(budget.UNLIMITED) == {}
