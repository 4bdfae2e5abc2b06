"""What we work out from a vendor's list is what the list's own library works out."""

import pytest
from genai_prices import Usage, calc_price

from mesh.fleet.file import parse_fleet
from mesh.fleet.setup import PricesMissing, listed, prices_of
from protocol.wire.prices import Price, Tokens, cost

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


FLEET = 'name = "f"\nentry = "a"\n[agents.a]\n[prices]\n'


def test_a_fleet_file_says_a_price_or_that_it_is_listed() -> None:
    said = 'claude-haiku-5-5 = "listed"\nmine = {input = 5, output = 7}\n'
    assert prices_of(parse_fleet(FLEET + said)) == {
        "claude-haiku-5-5": listed(["claude-haiku-5-5"])["claude-haiku-5-5"],
        "mine": {"input": 5, "output": 7, "cache_read": 5, "cache_write": 7, "cache_write_1h": 10},
    }
    with pytest.raises(PricesMissing):
        prices_of(parse_fleet(FLEET + 'claude-of-tomorrow = "listed"\n'))
