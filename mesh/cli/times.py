"""Times as people write them: `2026-11-21T02:00Z`, or a span: `90s`, `10m`, `2h`, `1d`."""

import re
from datetime import UTC, datetime, timedelta

from mesh.ops.errors import UsageWrong

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SPAN = re.compile(r"([0-9]{1,9})([smhd])")


def moment(written: str) -> datetime:
    """Return a time, UTC unless it says otherwise. Raises UsageWrong."""
    ago = _SPAN.fullmatch(written)
    try:
        at = datetime.now(UTC) - _span(ago) if ago is not None else datetime.fromisoformat(written)
    except (ValueError, OverflowError):
        raise UsageWrong(f"not a time: {written!r}; write 2026-11-21T02:00Z, or 90s, 10m, 2h, 1d") from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def server_time(written: str) -> str:
    """Return a time as the server reads it. Raises UsageWrong."""
    return moment(written).isoformat().replace("+00:00", "Z")


def microseconds_at(written: str) -> int:
    """Return a time as events have it: UTC µs. Raises UsageWrong."""
    return int(moment(written).timestamp() * 1e6)


def is_span(written: str) -> bool:
    """Return True if this is a span of time, and not a moment."""
    return _SPAN.fullmatch(written) is not None


def seconds_in(written: str) -> float:
    """Return a span of time in seconds. Raises UsageWrong."""
    span = _SPAN.fullmatch(written)
    if span is None or not int(span[1]):
        raise UsageWrong(f"not a span of time: {written!r}; write 90s, 10m, 2h, 1d")
    return _span(span).total_seconds()


def _span(found: re.Match[str]) -> timedelta:
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
