"""What has to be so for a test to go on: a value is of a kind, or is there. Both return it, so typed."""

from typing import TypeVar

T = TypeVar("T")


def is_(value: object, kind: type[T]) -> T:
    """Return `value`, which has to be of `kind`."""
    assert isinstance(value, kind), value
    return value


def known(value: T | None) -> T:
    """Return `value`, which has to be there."""
    assert value is not None
    return value
