"""Times as people write them: `2026-11-21T02:00Z`, or how long ago: `90s`, `10m`, `2h`, `1d`."""

import re
from datetime import UTC, datetime, timedelta

from mesh.cli.errors import UsageWrong

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(written: str) -> datetime:
    """Return a time, UTC unless it says otherwise. Raises UsageWrong."""
    ago = re.fullmatch(r"(\d{1,9})([smhd])", written)
    try:
        if ago is not None:
            at = datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            at = datetime.fromisoformat(written)
    except (ValueError, OverflowError):
        raise UsageWrong(f"not a time: {written!r}; write 2026-11-21T02:00Z, or 90s, 10m, 2h, 1d") from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def server_time(written: str) -> str:
    """Return a time as the server reads it. Raises UsageWrong."""
    return moment(written).isoformat().replace("+00:00", "Z")


def microseconds_at(written: str) -> int:
    """Return a time as events have it: UTC µs. Raises UsageWrong."""
    return int(moment(written).timestamp() * 1e6)
