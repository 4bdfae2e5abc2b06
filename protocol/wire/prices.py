"""Amounts: the ranges of numbers on the wire, and what tokens cost.

A type that has a range is refused out of it, wherever it is read. Costs are integer nano-dollars. A request
carries its price list from its beginning.

Prices are nano-dollars for a *million* tokens. So every price on a vendor's list is an integer, and a sum is
rounded once, at its end. Some models cost more for every token of a prompt that is long: `long`.
"""

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

READ_ERRORS = (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError, ValueError)
"""What reading bytes as a message may raise: an amount out of its range, or no message at all."""
LONGEST_S = 10 * 366 * 86_400.0
"""No time span on the wire is longer: ten years, so that no clock arithmetic can overflow."""
DAY_S = 86_400.0
LARGEST_AMOUNT = 1 << 62
"""No amount on the wire is larger: the sum of two still fits 64 bits. A larger sum is cut to it."""
MAX_MODELS = 32
"""Models in one account. What a report says about models is carried with every event that follows it."""
OTHER_MODELS = "other"
"""Where the models of a sum are counted together for which it has no room."""
MOST_TIMES = 1_000
"""Of hops, rounds, asks and failures: a larger limit would limit nothing."""
MOST_BYTES = 64 << 20
"""The largest `max_payload` that a nats-server takes."""

Seconds = Annotated[float, Meta(ge=0, le=LONGEST_S)]
"""A time that may be none at all."""
SomeSeconds = Annotated[float, Meta(gt=0, le=LONGEST_S)]
Count = Annotated[int, Meta(ge=0, lt=1 << 31)]
Moment = Annotated[int, Meta(ge=0, lt=1 << 53)]
"""UTC µs, up to the year 2255; exact in a double."""
Amount = Annotated[int, Meta(ge=0, le=LARGEST_AMOUNT)]
Times = Annotated[int, Meta(ge=0, le=MOST_TIMES)]
Hops = Annotated[int, Meta(ge=1, le=MOST_TIMES)]
Bytes = Annotated[int, Meta(ge=1, le=MOST_BYTES)]

MTOK = 1_000_000


class Tokens(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Tokens of a model's replies by what they are charged as. None is in two counts, but for `thinking`."""

    input: Amount = 0
    """Read anew."""
    cache_read: Amount = 0
    cache_write: Amount = 0
    """Written to the vendor's cache for the shorter time, five minutes."""
    cache_write_1h: Amount = 0
    output: Amount = 0
    """Thinking included."""
    thinking: Amount = 0
    """How many of `output` were thought, not said."""

    @property
    def prompt(self) -> int:
        """All that went in."""
        return self.input + self.cache_read + self.cache_write + self.cache_write_1h

    @property
    def total(self) -> int:
        """All of them, as a budget counts."""
        return self.prompt + self.output


class Metered(Tokens, frozen=True, kw_only=True):
    """What one model was used for, and what that cost."""

    calls: Amount = 0
    nano_dollars: Amount = 0

    def each(self, other: "Metered", combine: Callable[[int, int], int]) -> "Metered":
        """Return the two combined, count by count."""
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
    """Return one call."""
    return Metered(**msgspec.structs.asdict(tokens), calls=1, nano_dollars=nano_dollars)


class Price(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A model's prices, each in nano-dollars for a million tokens."""

    input: Amount
    output: Amount
    cache_read: Amount = 0
    cache_write: Amount = 0
    cache_write_1h: Amount = 0
    long_from: Amount | None = None
    """From how many tokens of a prompt on all of its tokens cost what `long` says; exclusive."""
    long: "Price | None" = None


def unsaid(anew: int) -> dict[str, int]:
    """Return what tokens of a vendor's cache are taken to cost, by kind, where a price list does not say it.

    It never falls below a vendor's price: reading costs as much as `input` (vendors take a part of that),
    writing 1.25 times as much, and for an hour twice.

    Args:
        anew: the price of `input`.
    """
    return {"cache_read": anew, "cache_write": (5 * anew + 3) // 4, "cache_write_1h": 2 * anew}


def cost(tokens: Tokens, price: Price) -> int:
    """Return what one reply cost: nano-dollars, rounded half up. `tokens` are those of one reply."""
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
    """Return prices by model from what a request or the fleet says; an entry that is none is left out."""
    found = {}
    for model, entry in (document or {}).items():
        try:
            found[model] = msgspec.convert(entry, Price)
        except msgspec.ValidationError:
            continue
    return found


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Return a model's price: its own, or that of the model whose dated snapshot its id names."""
    if model in prices:
        return prices[model]
    base, _, date = model.rpartition("-")
    return prices.get(base) if len(date) == 8 and date.isdigit() else None


def each_model(
    one: Mapping[str, Metered], other: Mapping[str, Metered], combine: Callable[[int, int], int]
) -> Mapping[str, Metered]:
    """Return two accounts combined, model by model; a model that was not used is left out.

    Of more than MAX_MODELS, the names of `one` stay as long as there is room; the others count as
    OTHER_MODELS. So the older account has to be `one`: then no model's count ever runs back.
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
    """Return an account in which the models that are not kept count as one."""
    found: dict[str, Metered] = {}
    for model, used in account.items():
        name = model if model in kept else OTHER_MODELS
        found[name] = found.get(name, UNUSED) + used
    return found
