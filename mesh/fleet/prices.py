"""The fleet file's prices: a table for each model, with everything said when it is written down."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocol.wire.prices import unsaid
from protocol.wire.values import LARGEST_AMOUNT


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
