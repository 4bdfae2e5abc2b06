"""What a check of `mesh doctor` comes to."""

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    check: str
    state: Literal["ok", "found", "unknown"]
    text: str


def ok(check: str, text: str) -> Finding:
    return Finding(check=check, state="ok", text=text)


def found(check: str, text: str) -> Finding:
    """Something is wrong."""
    return Finding(check=check, state="found", text=text)


def unknown(check: str, text: str) -> Finding:
    """These credentials or this server cannot tell."""
    return Finding(check=check, state="unknown", text=text)
