"""Text that is safe for a terminal and a log: foreign text made harmless, times and counts in words."""

import re
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from protocol.wire.records import Cut

_CONTROLS = "\x00-\x1f\x7f-\x9f"
"""C0, DEL and C1: cursor moves, colours, titles, and the clipboard of some terminals."""
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Marks, embeddings, overrides and isolates (Unicode Bidirectional Algorithm, UAX #9)."""
_UNSEEN = "\u200b\u2028\u2029\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
"""Line separators, and characters without a shape that can hide text. Joiners stay: scripts need them."""
_SURROGATES = "\ud800-\udfff"
_STEERING = re.compile(f"[{_CONTROLS}{_BIDI}{_UNSEEN}{_SURROGATES}]")
_STEERING_LINES = re.compile(f"(?![\t\n])[{_CONTROLS}{_BIDI}{_UNSEEN}{_SURROGATES}]")


def printable(text: str, *, lines: bool = False) -> str:
    """Return text with every character that could steer a terminal written out, like `\\x1b` or `\\u202e`.

    Args:
        lines: True to keep line feeds and tabs, in a text of several lines.
    """
    return (_STEERING_LINES if lines else _STEERING).sub(_escape, text)


def printable_json(text: str) -> str:
    """Return a JSON document with such characters as JSON escapes, `\\u001b`. Its value is the same."""
    return _STEERING_LINES.sub(_json_escape, text)


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _json_escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    if number < 0x10000:
        return f"\\u{number:04x}"
    return f"\\u{0xD7C0 + (number >> 10):04x}\\u{0xDC00 | number & 0x3FF:04x}"


# --- our own words and numbers --------------------------------------------------------------------


def one_line(text: str) -> str:
    """Return all of a text as one printable line."""
    return printable(" ".join(text.split()))


def short(text: str, most: int) -> str:
    """Return one printable line of at most `most` characters."""
    line = one_line(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"


_SPAN = re.compile(r"([0-9]{1,9})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def span_s(written: str) -> int | None:
    """Return the seconds of a span of time, written `90s`, `10m`, `2h` or `1d`; None for any other text."""
    span = _SPAN.fullmatch(written)
    return None if span is None else int(span[1]) * _UNITS[span[2]]


def moment(written: str) -> datetime | None:
    """Return a time, UTC by default, or the time a span ago; None for any other text."""
    ago_s = span_s(written)
    try:
        at = (
            datetime.fromisoformat(written) if ago_s is None else datetime.now(UTC) - timedelta(seconds=ago_s)
        )
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def when(at_us: int) -> str:
    """Return an event's time (UTC µs) as ISO-8601 with milliseconds; `?` for a time outside the calendar."""
    try:
        at = datetime.fromtimestamp(at_us / 1e6, UTC)
    except (ValueError, OverflowError, OSError):  # an agent can write any number
        return "?"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def counted(number: int, what: str, several: str = "") -> str:
    """Return a number with the noun that it counts; `several` is the plural if it does not end in `s`."""
    return f"{number} {what if number == 1 else several or what + 's'}"


def clock(at_us: int) -> str:
    """Return a time: on a terminal the time of day, with the date of another day; elsewhere in full (UTC)."""
    whole = when(at_us)
    if not sys.stdout.isatty() or whole == "?":
        return whole
    return whole[11:23] if whole[:10] == when(int(time.time() * 1e6))[:10] else f"{whole[:10]} {whole[11:19]}"


def as_json_text(value: Any) -> str:
    """Return a value as JSON in one line."""
    import msgspec

    return msgspec.json.encode(value).decode()


def as_text(value: Any) -> str:
    """Return a value as people read it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else as_json_text(value)


class _Called(Protocol):
    """A recorded call of a tool; of long arguments it has only a part."""

    @property
    def arguments(self) -> Any: ...
    @property
    def secret(self) -> tuple[str, ...]: ...
    @property
    def cut(self) -> "Cut | None": ...


def given(called: _Called) -> str:
    """Return a tool's arguments as people read them; empty if there are none, or they are not recorded."""
    parts = [as_json_text(called.arguments)] if called.arguments else []
    if called.cut is not None:
        parts = [f"{called.cut.head}… ({called.cut.bytes} bytes)"]
    return " ".join([*parts, *(f"{name}: secret" for name in called.secret)])


TIMES = frozenset({"at", "again_at", "since", "until", "expires_at", "due", "began", "ended", "deadline"})
"""Fields of our own structs that hold a time as UTC µs."""


def as_program_reads(value: Any) -> Any:
    """Return a value as plain JSON values, with the times of our structs as ISO-8601.

    A time outside the calendar stays a number, and so does any number within a foreign value.
    """
    import msgspec

    return _dated(value, msgspec.to_builtins(value))


def _dated(value: Any, plain: Any) -> Any:
    import msgspec

    if isinstance(value, msgspec.Struct) and isinstance(plain, dict):
        for name, key in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
            own = getattr(value, name)
            if name in TIMES and type(own) is int and key in plain:
                iso = when(own)
                plain[key] = own if iso == "?" or own <= 0 else iso
            elif key in plain:
                plain[key] = _dated(own, plain[key])
    elif isinstance(value, Mapping) and isinstance(plain, dict):
        return {
            key: _dated(own, each) for own, (key, each) in zip(value.values(), plain.items(), strict=True)
        }
    elif isinstance(value, list | tuple) and isinstance(plain, list | tuple):
        return [_dated(own, each) for own, each in zip(value, plain, strict=True)]
    return plain


class Line:
    """A line of output with its styles: parts of text, each plain or with a style of rich's."""

    def __init__(self, *parts: str | tuple[str, str]) -> None:
        self.parts = [(part, "") if isinstance(part, str) else part for part in parts]

    def append(self, text: str, style: str = "") -> None:
        self.parts.append((text, style))

    @property
    def plain(self) -> str:
        return "".join(text for text, _ in self.parts)
