"""What visitors say in addresses and forms, read as what it has to be."""

from collections.abc import Mapping

from mesh.errors import UsageWrong

MOST = 2**53
"""The largest number that every browser writes exactly."""


def number(said: Mapping[str, str], name: str, otherwise: int | None) -> int | None:
    """Return a whole number that is not negative; `otherwise` where nothing is said. Raises UsageWrong."""
    value = said.get(name, "").strip()
    if not value:
        return otherwise
    if not (value.isascii() and value.isdecimal()) or len(value) > 16 or int(value) > MOST:
        raise UsageWrong(f"{name} is a whole number, not {value[:40]!r}")
    return int(value)
