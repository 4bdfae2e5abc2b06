"""Money is integer nano-dollars, rounded once a reply, from prices that a request carries itself."""

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.prices import MTOK, Metered, Price, Tokens, cost, each_model, metered, price_list, price_of

DOLLAR = 1_000_000_000
PRICE = Price(input=2 * DOLLAR, output=10 * DOLLAR, cache_read=DOLLAR // 5, cache_write=5 * DOLLAR // 2)
LONG = Price(input=DOLLAR, output=DOLLAR, long_from=100, long=Price(input=5 * DOLLAR, output=5 * DOLLAR))

counts = st.integers(0, 10_000_000)


def test_each_kind_of_token_has_its_own_price() -> None:
    assert cost(Tokens(input=1), PRICE) == 2_000
    assert cost(Tokens(output=3), PRICE) == 30_000
    assert cost(Tokens(cache_read=10, cache_write=4), PRICE) == 2_000 + 10_000


def test_a_long_prompt_costs_more_from_its_first_token_on() -> None:
    assert cost(Tokens(input=100), LONG) == 100_000
    assert cost(Tokens(input=60, cache_read=41), LONG) == 60 * 5_000


def test_what_is_less_than_a_nano_dollar_is_rounded_once() -> None:
    tiny = Price(input=MTOK // 2 - 1, output=MTOK // 2)
    assert cost(Tokens(input=1), tiny) == 0
    assert cost(Tokens(output=1), tiny) == 1
    assert cost(Tokens(input=1, output=1), tiny) == 1


@given(counts, counts, counts)
def test_what_was_used_adds_up_and_prompt_and_output_are_all_of_it(one: int, two: int, three: int) -> None:
    first = metered(Tokens(input=one, cache_read=two), 7)
    both = first + metered(Tokens(output=three, cache_write=one), 5)
    whole = Metered(input=one, cache_read=two, output=three, cache_write=one, calls=2, nano_dollars=12)
    assert both == whole
    assert both.total == both.prompt + both.output == 2 * one + two + three
    assert both.each(first, operator.sub) + first == both


def test_accounts_are_combined_model_by_model() -> None:
    one, other = {"a": Metered(input=5)}, {"a": Metered(input=3), "b": Metered(output=1)}
    assert each_model(one, other, operator.add) == {"a": Metered(input=8), "b": Metered(output=1)}
    assert each_model(one, other, max) == {"a": Metered(input=5), "b": Metered(output=1)}
    assert each_model(one, one, operator.sub) == {}


def test_a_dated_snapshot_costs_what_its_model_costs_and_nothing_else_does() -> None:
    prices = {"claude-haiku-5-5": PRICE}
    assert price_of("claude-haiku-5-5-20261001", prices) is PRICE
    assert price_of("claude-haiku-5-5", prices) is PRICE
    assert price_of("claude-haiku-5", prices) is None
    assert price_of("claude-haiku-5-5-2026", prices) is None


@pytest.mark.parametrize("entry", [3, {"input": "much", "output": 1}, {"input": 1}, None])
def test_an_entry_that_is_no_price_is_left_out(entry: object) -> None:
    assert price_list({"a": entry, "b": {"input": 1, "output": 2}}) == {"b": Price(input=1, output=2)}
    assert price_list(None) == {}
