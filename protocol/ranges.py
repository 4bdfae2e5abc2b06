"""Ranges of the numbers on the wire. A type that has one is refused out of it, wherever it is read."""

from typing import Annotated

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
