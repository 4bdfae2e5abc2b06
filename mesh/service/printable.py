"""Text of strangers, made fit for a terminal: nothing in it moves the cursor, hides or reorders text."""

import re

_CONTROLS = "\x00-\x1f\x7f-\x9f"
"""C0, DEL and C1: cursor moves, colours, titles, and the clipboard of some terminals."""
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Marks, embeddings, overrides and isolates (Unicode Bidirectional Algorithm, UAX #9)."""
_UNSEEN = "\u200b\u2028\u2029\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
"""Separators of lines, and characters without a shape that can hide text. Joiners stay: scripts need them."""
_SURROGATES = "\ud800-\udfff"
_STEERING = re.compile(f"[{_CONTROLS}{_BIDI}{_UNSEEN}{_SURROGATES}]")
_STEERING_LINES = re.compile(f"(?![\t\n])[{_CONTROLS}{_BIDI}{_UNSEEN}{_SURROGATES}]")


def printable(text: str, *, lines: bool = False) -> str:
    """Return text with every character that could steer a terminal written out, like `\\x1b` or `\\u202e`.

    Args:
        lines: keep line feeds and tabs, in a text of several lines.
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
