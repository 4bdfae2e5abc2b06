"""The fleet file's prices: a table for each model, with everything said when it is written down.

Vendors' price lists, from the extra `prices`: read when a fleet is set up, never while a request runs.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from mesh.errors import MeshError
from protocol.wire.prices import LARGEST_AMOUNT, Price, unsaid


class Strict(BaseModel):
    """A table of the fleet file: a field that is unknown, or no number, is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LongPriceSection(Strict):
    """Numbers of protocol.wire.prices.Price, but for those of a long prompt.

    What is not said of the cache is never taken to be free: it is what protocol.wire.prices.unsaid says.
    """

    model_config = ConfigDict(strict=True)

    input: int = Field(ge=0, le=LARGEST_AMOUNT)
    output: int = Field(ge=0, le=LARGEST_AMOUNT)
    cache_read: int | None = Field(default=None, ge=0, le=LARGEST_AMOUNT)
    cache_write: int | None = Field(default=None, ge=0, le=LARGEST_AMOUNT)
    cache_write_1h: int | None = Field(default=None, ge=0, le=LARGEST_AMOUNT)

    @property
    def whole(self) -> dict[str, Any]:
        """As the fleet writes it down, with everything said."""
        return unsaid(self.input) | self.model_dump(exclude_none=True)


class PriceSection(LongPriceSection):
    """Numbers of protocol.wire.prices.Price."""

    long_from: int | None = Field(default=None, ge=0, le=LARGEST_AMOUNT)
    long: LongPriceSection | None = None

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.long_from is None) != (self.long is None):
            raise ValueError("`long_from` and `long` go together: from how many tokens on, and what then")
        return self

    @property
    def whole(self) -> dict[str, Any]:
        """As the fleet writes it down, with everything said."""
        return super().whole | ({} if self.long is None else {"long": self.long.whole})


VENDOR = "anthropic"
_NANO = 1_000_000_000
_FIELDS = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cache_read": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
    "cache_write_1h": "cache_write_1h_mtok",
}


class PricesMissing(MeshError):
    """A model's price is not known here; the text says what to do."""

    code: ClassVar[str] = "prices.missing"


def listed(models: Iterable[str]) -> dict[str, Price]:
    """Return today's prices of `models` by id. Raises PricesMissing."""
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError as missing:
        raise PricesMissing("install handoff-mesh[prices], or say [prices] in the fleet file") from missing
    snapshot = get_snapshot()
    found = {}
    for model in models:
        try:
            _, info = snapshot.find_provider_model(model, None, VENDOR, None)
        except LookupError as unknown:
            raise PricesMissing(
                f"no price of {model!r} is listed; say it under [prices] in the fleet file"
            ) from unknown
        found[model] = _price(info.get_prices(_now()))
    return found


def _now() -> Any:
    import datetime as dt

    return dt.datetime.now(dt.UTC)


def _price(prices: Any) -> Price:
    """Return a price without tiers, and beside it what a long prompt costs where a list says so."""
    raw = {field: getattr(prices, name, None) for field, name in _FIELDS.items()}
    starts = {tier.start for each in raw.values() for tier in _tiers(each)}
    if len(starts) > 1:
        raise PricesMissing(f"a price with {len(starts)} tiers; only one is known here")
    base = _whole({field: getattr(each, "base", each) for field, each in raw.items()})
    if not starts:
        return base
    beyond = {field: _tiers(each)[0].price if _tiers(each) else each for field, each in raw.items()}
    return msgspec.structs.replace(base, long_from=starts.pop(), long=_whole(beyond))


def _whole(dollars: Mapping[str, Decimal | None]) -> Price:
    """Return a price; what a list does not say of the cache is what it costs at most."""
    said = {field: _nano(each) for field, each in dollars.items() if each is not None}
    return msgspec.convert({**unsaid(said.get("input", 0)), "input": 0, "output": 0, **said}, Price)


def _tiers(price: Any) -> Sequence[Any]:
    return getattr(price, "tiers", None) or ()


def _nano(dollars: Decimal) -> int:
    """Return dollars a million tokens as nano-dollars a million tokens."""
    return int(dollars * _NANO)
