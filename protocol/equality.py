"""Equality of JSON values: the one comparison that rules, recovery, folding and replay go by."""

from typing import Any

import msgspec


def equal(one: Any, other: Any) -> bool:
    """Return True if two messages, or parts of them, are one JSON value.

    Types count at every depth: `true`, `1`, `1.0` and `"1"` are four values, though Python's `==` takes three
    of them for one. The order of an object's keys does not count. JSON knows no NaN, so that nothing differs
    from itself.
    """
    return one is other or _canonical(one) == _canonical(other)


def _canonical(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")
