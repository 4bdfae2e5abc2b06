"""Values on the wire: the ranges of its numbers, and when two JSON values are one.

A type that has a range is refused out of it, wherever it is read.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

LONGEST_S = 10 * 366 * 86_400.0
"""No time span on the wire is longer: ten years, so that no clock arithmetic can overflow."""
DAY_S = 86_400.0
LARGEST_AMOUNT = 1 << 62
"""No amount on the wire is larger: the sum of two still fits 64 bits."""
MOST_TIMES = 1_000
"""Of hops, rounds, asks and failures: a larger limit would limit nothing."""
MOST_BYTES = 64 << 20
"""The largest `max_payload` that a nats-server takes."""

Seconds = Annotated[float, Meta(ge=0, le=LONGEST_S)]
"""A time that may be none at all."""
SomeSeconds = Annotated[float, Meta(gt=0, le=LONGEST_S)]
Amount = Annotated[int, Meta(ge=0, le=LARGEST_AMOUNT)]
Times = Annotated[int, Meta(ge=0, le=MOST_TIMES)]
Hops = Annotated[int, Meta(ge=1, le=MOST_TIMES)]
Bytes = Annotated[int, Meta(ge=1, le=MOST_BYTES)]


def equal(one: Any, other: Any) -> bool:
    """Return True if two messages, or parts of them, are one JSON value.

    Types count at every depth: `true`, `1`, `1.0` and `"1"` are four values, though Python's `==` takes three
    of them for one. The order of an object's keys does not count. JSON knows no NaN, so that nothing differs
    from itself.
    """
    return one is other or _canonical(one) == _canonical(other)


def _canonical(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")
