"""How a sender learns that a message came to nothing: its notice, and the dead letter that is kept."""

import base64
from collections.abc import Mapping

import msgspec


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
    """SHA-256 (hex) of the message's bytes: with every `error`, and with `ended` that answers a submit."""
