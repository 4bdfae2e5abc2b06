"""Amounts: the ranges of numbers on the wire, and what tokens cost.

A number outside its type's range is refused wherever it is read. Costs are integer nano-dollars. A request
keeps the price list that was current when it was opened.

Prices are nano-dollars per *million* tokens. So every price on a vendor's list is an integer, and a sum is
rounded only once, at the end. Some models charge more for every token of a long prompt: see `Price.long`.
"""

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

READ_ERRORS = (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError, ValueError)
"""What decoding a message may raise: bytes that are no message, or an amount out of range."""
LONGEST_S = 10 * 366 * 86_400.0
"""Longest time span on the wire: ten years, so that clock arithmetic cannot overflow."""
DAY_S = 86_400.0
LARGEST_AMOUNT = 1 << 62
"""Largest amount on the wire. The sum of two still fits into 64 bits; larger sums are capped here."""
MAX_MODELS = 32
"""Most models in one account. Every later event carries what a report tells about models."""
OTHER_MODELS = "other"
"""Name under which a sum counts the models that it has no room for."""
MOST_TIMES = 1_000
"""Largest limit of hops, rounds, asks and failures. A larger one would limit nothing."""
MOST_BYTES = 64 << 20
"""The largest `max_payload` that a nats-server takes."""

Seconds = Annotated[float, Meta(ge=0, le=LONGEST_S)]
"""A time span; may be zero."""
PositiveSeconds = Annotated[float, Meta(gt=0, le=LONGEST_S)]
Count = Annotated[int, Meta(ge=0, lt=1 << 31)]
Moment = Annotated[int, Meta(ge=0, lt=1 << 53)]
"""UTC µs, up to the year 2255. Exact as a double."""
Amount = Annotated[int, Meta(ge=0, le=LARGEST_AMOUNT)]
Times = Annotated[int, Meta(ge=0, le=MOST_TIMES)]
Hops = Annotated[int, Meta(ge=1, le=MOST_TIMES)]
Bytes = Annotated[int, Meta(ge=1, le=MOST_BYTES)]

MTOK = 1_000_000


class Tokens(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Tokens of a model's replies, by how they are charged. The counts are disjoint, except `thinking`."""

    input: Amount = 0
    """Read without a cache."""
    cache_read: Amount = 0
    cache_write: Amount = 0
    """Written to the vendor's cache for five minutes, the shorter of its lifetimes."""
    cache_write_1h: Amount = 0
    output: Amount = 0
    """Includes thinking."""
    thinking: Amount = 0
    """How many of the `output` tokens were thinking."""

    @property
    def prompt(self) -> int:
        """All input tokens, cached or not."""
        return self.input + self.cache_read + self.cache_write + self.cache_write_1h

    @property
    def total(self) -> int:
        """All tokens, as a budget counts them."""
        return self.prompt + self.output


class Metered(Tokens, frozen=True, kw_only=True):
    """How much a model was used, and what that cost."""

    calls: Amount = 0
    nano_dollars: Amount = 0

    def each(self, other: "Metered", combine: Callable[[int, int], int]) -> "Metered":
        """Combine two accounts, count by count; the results are capped at LARGEST_AMOUNT."""
        names = self.__struct_fields__
        return Metered(
            **{
                name: min(combine(getattr(self, name), getattr(other, name)), LARGEST_AMOUNT)
                for name in names
            }
        )

    def __add__(self, other: "Metered") -> "Metered":
        return self.each(other, operator.add)


UNUSED = Metered()


def metered(tokens: Tokens, nano_dollars: int) -> Metered:
    """Return the account of a single call."""
    return Metered(**msgspec.structs.asdict(tokens), calls=1, nano_dollars=nano_dollars)


class Price(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A model's prices, each in nano-dollars per million tokens."""

    input: Amount
    output: Amount
    cache_read: Amount = 0
    cache_write: Amount = 0
    cache_write_1h: Amount = 0
    long_from: Amount | None = None
    """If a prompt has more tokens than this, all of its tokens are charged at the prices in `long`."""
    long: "Price | None" = None


def assumed_cache_prices(input_price: int) -> dict[str, int]:
    """Return the prices to assume for cached tokens, by kind, when a price list has none.

    They are never below a vendor's price: a read costs as much as uncached input (vendors charge less), a
    write 1.25 times as much, and a write for one hour twice as much.
    """
    return {
        "cache_read": input_price,
        "cache_write": (5 * input_price + 3) // 4,
        "cache_write_1h": 2 * input_price,
    }


def cost(tokens: Tokens, price: Price) -> int:
    """Return the cost of one reply in nano-dollars, rounded half up. `tokens` must be of one reply only."""
    if price.long is not None and price.long_from is not None and tokens.prompt > price.long_from:
        price = price.long
    exact = (
        tokens.input * price.input
        + tokens.cache_read * price.cache_read
        + tokens.cache_write * price.cache_write
        + tokens.cache_write_1h * price.cache_write_1h
        + tokens.output * price.output
    )
    return (exact + MTOK // 2) // MTOK


def price_list(document: Mapping[str, Any] | None) -> dict[str, Price]:
    """Return the prices by model in a request's or the fleet's document. Invalid entries are left out."""
    found = {}
    for model, entry in (document or {}).items():
        try:
            found[model] = msgspec.convert(entry, Price)
        except msgspec.ValidationError:
            continue
    return found


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Return a model's price. A dated snapshot without a price has that of its base model."""
    if model in prices:
        return prices[model]
    base, _, date = model.rpartition("-")
    return prices.get(base) if len(date) == 8 and date.isdigit() else None


def each_model(
    one: Mapping[str, Metered], other: Mapping[str, Metered], combine: Callable[[int, int], int]
) -> Mapping[str, Metered]:
    """Combine two accounts, model by model. A model without any use is left out.

    If there are more than MAX_MODELS, the models of `one` keep their names while there is room, and the
    others are counted as OTHER_MODELS. So pass the older account as `one`: then no model's count ever
    decreases.
    """
    if not one and not other:
        return one
    names = {*one, *other}
    if len(names) > MAX_MODELS:
        in_order = [name for name in (*sorted(one), *sorted(names.difference(one))) if name != OTHER_MODELS]
        kept = frozenset(in_order[: MAX_MODELS - 1])
        one, other = _merged(one, kept), _merged(other, kept)
        names = {*one, *other}
    found = {model: one.get(model, UNUSED).each(other.get(model, UNUSED), combine) for model in sorted(names)}
    return {model: used for model, used in found.items() if used != UNUSED}


def _merged(account: Mapping[str, Metered], kept: Collection[str]) -> Mapping[str, Metered]:
    """Return an account in which all models not in `kept` are counted as OTHER_MODELS."""
    found: dict[str, Metered] = {}
    for model, used in account.items():
        name = model if model in kept else OTHER_MODELS
        found[name] = found.get(name, UNUSED) + used
    return found
