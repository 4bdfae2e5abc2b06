"""Notices and dead letters: how somebody learns that a message of theirs came to nothing.

A notice is a hint on core NATS, gone if nobody listens; a dead letter is kept, with the original
bytes. Whatever can be neither read nor acted on gets both, and is then acknowledged.
"""

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from protocol.ids import NOBODY, is_token
from protocol.subjects import dead, note

MAX_DATA_BYTES = 256 * 1024
"""Bytes of the original that a dead letter keeps: as much as a proposal may have."""
MAX_HEADER_CHARS = 8 * 1024
"""Characters of its headers; JSON may make six of one, and all of it has to fit."""
MAX_DETAIL_CHARS = 512
"""Characters of a reason: one that names what a sender wrote must not grow with it."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that nobody could read or act on."""

    v: int = 1
    at: int
    """UTC µs."""
    by: str
    """Whose dead-letter list it is in: who gave up on it."""
    code: str
    """Why, for programs."""
    detail: str
    """Why, in one sentence; nothing of what the message said."""
    subject: str
    sender: str = ""
    """By the broker's word; empty where the subject names none."""
    request: str = ""
    delivered: int = 1
    headers: Mapping[str, str] = {}
    data: str = ""
    """The original bytes, base64."""
    truncated: bool = False
    """Whether some of the data or of the headers was too much to keep."""

    @property
    def original(self) -> bytes:
        return base64.b64decode(self.data)


class NoticeError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was wrong with a message."""

    code: str
    detail: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn is over, or its round was decided."""

    why: str
    turn: str = ""
    round: int = 0


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A note with a body. Exactly one of `error` and `ended` is set."""

    v: int = 1
    request: str
    error: NoticeError | None = None
    ended: Ended | None = None
    digest: str = ""
    """With `error`: SHA-256 (hex) of the bytes that it is about."""


def dead_letter(
    *,
    at: int,
    by: str,
    code: str,
    detail: str,
    subject: str,
    data: bytes,
    headers: Mapping[str, str] | None = None,
    **known: Any,
) -> DeadLetter:
    """Return the dead letter for `data`, its beginning where it is too long to keep."""
    given = headers or {}
    kept = _first(given)
    return DeadLetter(
        at=at,
        by=by,
        code=code,
        detail=detail[:MAX_DETAIL_CHARS],
        subject=subject,
        headers=kept,
        data=base64.b64encode(data[:MAX_DATA_BYTES]).decode(),
        truncated=len(data) > MAX_DATA_BYTES or kept != given,
        **known,
    )


def _first(headers: Mapping[str, str]) -> dict[str, str]:
    """Return as many headers, from the first on, as there is room for."""
    kept, room = {}, MAX_HEADER_CHARS
    for name, value in headers.items():
        room -= len(name) + len(value)
        if room < 0:
            break
        kept[name] = value
    return kept


def dead_subject(by: str) -> str:
    return dead(by)


def note_subject(to: str, request: str) -> str:
    """Return where a notice goes; one about an id that no subject can hold goes to `_`."""
    return note(to, request if is_token(request) else NOBODY)
