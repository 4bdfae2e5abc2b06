"""Budgets as ceilings: the total to which a frame may raise the request's spending.

A grant of 100 tokens when the request has spent 40 becomes the ceiling 140. What is left is always the
ceiling minus the spending of all agents together. So a hand-back needs no book-keeping: the receiver has its
own grant again, minus what was spent since. And a narrower grant never exceeds the grant that it was cut
from.
"""

import operator
from collections.abc import Callable, Iterable
from functools import reduce

from protocol.wire.commands import Usage
from protocol.wire.handoff import Budget
from protocol.wire.prices import LARGEST_AMOUNT, each_model

NOTHING = Usage()
UNLIMITED = Budget()
_NOTHING_MORE = Budget(nano_dollars=0, tokens=0, model_calls=0)


def _each(combine: Callable[[int | None, int], int | None], budget: Budget, usage: Usage) -> Budget:
    return Budget(
        nano_dollars=combine(budget.nano_dollars, usage.nano_dollars),
        tokens=combine(budget.tokens, usage.tokens),
        model_calls=combine(budget.model_calls, usage.model_calls),
    )


def left(ceiling: Budget, spent: Usage) -> Budget:
    """Return what may still be spent; negative if it was exceeded."""
    if ceiling == UNLIMITED:
        return UNLIMITED
    return _each(lambda most, used: None if most is None else most - used, ceiling, spent)


def ceiling(grant: Budget, spent: Usage) -> Budget:
    """Return the ceiling of a grant that is made after `spent` was spent."""
    if grant == UNLIMITED:
        return UNLIMITED
    return _each(lambda more, used: None if more is None else more + used, grant, spent)


def grant(asked: Budget | None, rest: Budget) -> Budget:
    """Return the grant out of `rest`: what is asked for, or all of it in dimensions not asked for."""
    if asked is None:
        return rest
    return Budget(
        nano_dollars=rest.nano_dollars if asked.nano_dollars is None else asked.nano_dollars,
        tokens=rest.tokens if asked.tokens is None else asked.tokens,
        model_calls=rest.model_calls if asked.model_calls is None else asked.model_calls,
    )


def excess(asked: Budget | None, rest: Budget) -> dict[str, tuple[int, int]]:
    """Return {dimension: (asked, left)} for dimensions in which more is asked for than is left."""
    found: dict[str, tuple[int, int]] = {}
    for name in Budget.__struct_fields__ if asked is not None else ():
        want, have = getattr(asked, name), getattr(rest, name)
        if want is not None and have is not None and want > have:
            found[name] = (want, have)
    return found


def overdrawn(rest: Budget) -> dict[str, int]:
    """Return {dimension: overspent amount} for dimensions in which the rest is negative."""
    return {name: have - left for name, (have, left) in excess(_NOTHING_MORE, rest).items()}


def plus(one: Usage, other: Usage) -> Usage:
    """Return the sum, capped to what the wire allows. If one account is older, pass it as `one`."""
    if other == NOTHING:
        return one
    if one == NOTHING:
        return other
    return _both(operator.add, one, other)


def total(usages: Iterable[Usage]) -> Usage:
    return reduce(plus, usages, NOTHING)


def minus(one: Usage, other: Usage) -> Usage:
    return _both(operator.sub, one, other)


def larger(before: Usage, now: Usage) -> Usage:
    """Return the maximum in each dimension: spending over all rounds never decreases."""
    return _both(max, before, now)


def _both(combine: Callable[[int, int], int], one: Usage, other: Usage) -> Usage:
    return Usage(
        nano_dollars=min(combine(one.nano_dollars, other.nano_dollars), LARGEST_AMOUNT),
        tokens=min(combine(one.tokens, other.tokens), LARGEST_AMOUNT),
        model_calls=min(combine(one.model_calls, other.model_calls), LARGEST_AMOUNT),
        models=each_model(one.models, other.models, combine),
    )


def amounts(rest: Budget) -> tuple[int | None, ...]:
    """Return a budget's dimensions; None where it has no limit."""
    return rest.nano_dollars, rest.tokens, rest.model_calls


def whole(rest: Budget) -> Usage:
    """Return what a turn is charged if it never reported: all that it had left in limited dimensions."""
    return Usage(
        nano_dollars=_amount(rest.nano_dollars),
        tokens=_amount(rest.tokens),
        model_calls=_amount(rest.model_calls),
    )


def _amount(rest: int | None) -> int:
    return min(max(0, rest or 0), LARGEST_AMOUNT)


def public(budget: Budget) -> Budget | None:
    """Return a budget in the form of constraints: None if it limits nothing."""
    return None if budget == UNLIMITED else budget
