"""How a model reads a tool's result: a text as it is, anything else as JSON, and no picture as base64.

A picture of 100 KB would take 133,000 characters of a prompt, and mean nothing to a model. It is replaced by
its kind and size. The agent's code still gets the whole result.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

_DATA_URI = re.compile(r"data:([\w.+-]+/[\w.+-]+)[^,]*;base64,([\w+/=\s-]*)")
_BASE64 = re.compile(r"[A-Za-z0-9+/_\s-]+={0,2}\s*")
_BEGINS = {"iVBORw0KGg": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp"}
"""How a picture's base64 begins."""
_LEAST_CHARS = 128
"""A text up to this length is always shown."""
_KINDS = ("mimeType", "mime_type", "mediaType", "media_type")
_CONTENTS = ("data", "blob")
"""Fields in which blocks of MCP and of vendors hold data whose type is in one of `_KINDS`."""


def as_text(result: Any) -> str:
    """Return a result as text."""
    if isinstance(result, str):
        return _shown(result)
    return msgspec.json.encode(_without_pictures(result), enc_hook=str).decode()


def _without_pictures(value: Any) -> Any:
    match value:
        case str():
            return _shown(value)
        case list() | tuple():
            return [_without_pictures(each) for each in value]
        case Mapping():
            kind = next((value[name] for name in _KINDS if isinstance(value.get(name), str)), "")
            return {
                name: _shown(inner, kind)
                if kind and name in _CONTENTS and isinstance(inner, str)
                else _without_pictures(inner)
                for name, inner in value.items()
            }
    return value


def _shown(text: str, kind: str = "") -> str:
    """Return a text, or only kind and size if it is bytes as base64.

    Args:
        kind: the media type given beside it; empty if there is none.
    """
    if len(text) <= _LEAST_CHARS:
        return text
    if uri := _DATA_URI.fullmatch(text):
        return _placeholder(*uri.groups())
    kind = kind or next((kind for begin, kind in _BEGINS.items() if text.startswith(begin)), "")
    return _placeholder(kind, text) if kind and _BASE64.fullmatch(text) else text


def _placeholder(kind: str, base64: str) -> str:
    return f"[{kind}, {len(base64.rstrip('=')) * 3 // 4} bytes: not shown]"
