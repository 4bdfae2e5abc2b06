"""The templates' environment, and how values are written in them: on the page and in a downloaded request."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mesh.service.printable import printable, printable_json, short, when
from protocol.views.timeline import Timeline

MOST_SHOWN = 4_000
"""Characters of one value on a view; the event's JSON has the whole."""


def environment() -> Environment:
    """Return the templates. All text of strangers is escaped, and made harmless to whoever copies it."""
    made = Environment(
        loader=PackageLoader("mesh.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    filters = (when, short, money, pretty, shown, clock, day, lasting, unquoted)
    made.filters |= {each.__name__: each for each in filters}
    made.globals |= {"parts": parts, "closing": closing}
    return made


def _harmless(value: Any) -> Any:
    if isinstance(value, Markup):
        return value
    return "" if value is None else printable(str(value), lines=True)


def money(nano_dollars: int) -> str:
    """Return an amount as `$0.0123`; nothing for none."""
    return "" if not nano_dollars else f"${nano_dollars / 1e9:,.4f}"


def parts(shown: int, last: int) -> list[int]:
    """Return which parts of something long are named: the first, the last, and those around the one shown."""
    return sorted({0, last, *range(max(0, shown - 3), min(last, shown + 3) + 1)})


def closing(told: Timeline) -> frozenset[int]:
    """Return the numbers of the entries after which no other is about the same turn."""
    return frozenset({move.turn.id: move.seq for move in told.moves if move.turn is not None}.values())


def shown(value: Any) -> str:
    """Return a value as people read it: text as it is, all else as JSON; the beginning of what is long."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} … ({len(text)} characters)"


def unquoted(choice: str) -> str:
    """Return a choice, which is JSON, as people read it: a text without its quotes."""
    value = msgspec.json.decode(choice)
    return value if isinstance(value, str) else choice


def pretty(value: Any) -> str:
    """Return a value as indented JSON; bytes are JSON already."""
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return printable_json(msgspec.json.format(body, indent=2).decode())


def clock(at_us: int) -> str:
    """Return the time of day of an event (UTC µs) as `14:03:22.123`."""
    return when(at_us)[11:23] or "?"


def day(at_us: int) -> str:
    """Return the day and minute of an event (UTC µs) as `22 Nov 2026, 14:03`."""
    try:
        return f"{datetime.fromtimestamp(at_us / 1e6, UTC):%-d %b %Y, %H:%M}"
    except (ValueError, OverflowError, OSError):
        return "?"


def lasting(us: int) -> str:
    """Return a span of time in its two largest units: `1.24 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`."""
    seconds = max(0, us) / 1e6
    if seconds < 60:
        return f"{seconds:.2f} s"
    whole = int(seconds)
    for size, large, small in ((86_400, "d", "h"), (3_600, "h", "min"), (60, "min", "s")):
        if whole >= size:
            rest = whole % size // {"h": 3_600, "min": 60, "s": 1}[small]
            return f"{whole // size} {large} {rest} {small}"
    raise AssertionError("less than a minute was told above")
