"""Prices and budgets in the fleet file, and what the lists of vendors say."""

import pytest
from genai_prices import Usage, calc_price

from mesh.fleet.file import LISTED, FleetFileError, parse_fleet
from mesh.fleet.setup import PricesMissing, listed, prices_of
from protocol.wire.handoff import Budget
from protocol.wire.prices import MTOK, Price, Tokens, cost, price_list
from tests.unit.fleet.test_fleet_file import GOOD

PRICE = "input = 1, output = 2"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            f"[prices]\nm = {{{PRICE}, cached_read = 3}}",
            r"prices\.m: cached_read: unknown key; did you mean `cache_read`",
        ),
        ("[prices]\nm = {input = -5, output = 2}", r"prices\.m: input: .*greater than or equal to 0"),
        (f"[prices]\nm = {{input = {2**63}, output = 2}}", r"prices\.m: input: .*less than or equal"),
        ("[prices]\nm = {input = 1.0, output = 2}", r"prices\.m: input: .*integer"),
        (f"[prices]\nm = {{{PRICE}, long_from = 5}}", r"prices\.m: .*`long_from` and `long` go together"),
        (f"[prices]\nm = {{{PRICE}, long = {{{PRICE}}}}}", r"prices\.m: .*`long_from` and `long`"),
        (
            f"[prices]\nm = {{{PRICE}, long_from = 5, long = {{{PRICE}, long_from = 9}}}}",
            r"prices\.m: long\.long_from: unknown key",
        ),
        ('[prices]\nm = "Listed"', r'prices\.m: a price is a table.*or say "listed"'),
        (
            "[policies.poor.budget]\nnano_dollar = 3",
            r"policies\.poor: budget: unknown field `nano_dollar`; did you mean `nano_dollars`",
        ),
        ("[policies.poor.budget]\ntokens = -3", r"policies\.poor: budget\.tokens: expected 0 to 2\^62"),
        (f"[policies.poor.budget]\nmodel_calls = {2**63}", r"policies\.poor: budget.model_calls: "),
        ("[policies.poor]\nbudget = 5", r"policies\.poor: budget: expected `object"),
    ],
)
def test_a_mistake_about_money_is_named_with_its_place(lines: str, said: str) -> None:
    with pytest.raises(FleetFileError, match=said):
        parse_fleet(f"{GOOD}\n{lines}\n")


def test_prices_and_budgets_that_are_right_are_taken_as_they_are() -> None:
    price = f"{{{PRICE}, cache_read = 0, long_from = 5, long = {{{PRICE}, cache_write_1h = 9}}}}"
    file = parse_fleet(
        f'{GOOD}\n[prices]\nm = {price}\nn = "listed"\n[policies.poor.budget]\nnano_dollars = 0\n'
    )
    taken = price_list(file.priced)["m"]
    assert (taken.cache_read, taken.cache_write) == (0, 2)
    assert taken.long == Price(input=1, output=2, cache_read=1, cache_write=2, cache_write_1h=9)
    assert file.priced["n"] == LISTED
    assert file.rules["poor"].budget == Budget(nano_dollars=0)


def test_what_a_price_does_not_say_of_the_cache_is_never_less_than_what_a_vendor_takes() -> None:
    file = parse_fleet(
        f"{GOOD}\n[prices]\nm = {{input = 100, output = 500, cache_read = 7, "
        "long_from = 9, long = {input = 200, output = 600}}\n"
    )
    long = {"input": 200, "output": 600, "cache_read": 200, "cache_write": 250, "cache_write_1h": 400}
    assert file.priced["m"] == {
        "input": 100,
        "output": 500,
        "cache_read": 7,
        "cache_write": 125,
        "cache_write_1h": 200,
        "long_from": 9,
        "long": long,
    }
    million = Tokens(cache_read=MTOK, cache_write=MTOK, cache_write_1h=MTOK)
    assert cost(million, price_list(file.priced)["m"]) == 850


MODELS = ("claude-haiku-5-5", "claude-sonnet-5-5", "claude-opus-5-5")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "tokens",
    [
        Tokens(input=120, cache_read=1_000, cache_write=200, output=30),
        Tokens(input=99_000, cache_read=1_000, output=30),
        Tokens(input=99_000, cache_read=1_001, output=33),
    ],
)
def test_cost_is_what_the_list_says(model: str, tokens: Tokens) -> None:
    usage = Usage(
        input_tokens=tokens.prompt,
        cache_read_tokens=tokens.cache_read,
        cache_write_tokens=tokens.cache_write,
        output_tokens=tokens.output,
    )
    said = calc_price(usage, model_ref=model, provider_id="anthropic").total_price
    assert cost(tokens, listed([model])[model]) == round(said * 1_000_000_000)


def test_openais_list_is_looked_through_too() -> None:
    assert listed(["gpt-4o"])["gpt-4o"].output > listed(["gpt-4o-mini"])["gpt-4o-mini"].output > 0


def test_a_model_without_a_listed_price_says_what_to_do() -> None:
    with pytest.raises(PricesMissing, match=r"\[prices\] in the fleet file"):
        listed(["claude-of-tomorrow"])


def test_what_a_list_does_not_say_of_the_cache_is_not_taken_to_be_free() -> None:
    price = listed(["claude-2"])["claude-2"]
    assert price == Price(
        input=8_000_000_000,
        output=24_000_000_000,
        cache_read=8_000_000_000,
        cache_write=10_000_000_000,
        cache_write_1h=16_000_000_000,
    )


PRICED = 'name = "f"\nentry = "a"\n[agents.a]\n[prices]\n'


def test_a_fleet_file_says_a_price_or_that_it_is_listed() -> None:
    said = 'claude-haiku-5-5 = "listed"\nmine = {input = 5, output = 7}\n'
    assert prices_of(parse_fleet(PRICED + said)) == {
        "claude-haiku-5-5": listed(["claude-haiku-5-5"])["claude-haiku-5-5"],
        "mine": {"input": 5, "output": 7, "cache_read": 5, "cache_write": 7, "cache_write_1h": 10},
    }
    with pytest.raises(PricesMissing):
        prices_of(parse_fleet(PRICED + 'claude-of-tomorrow = "listed"\n'))
