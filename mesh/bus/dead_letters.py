"""Notices and dead letters: how somebody learns that a message of theirs came to nothing.

A notice is a hint on core NATS, gone if nobody listens; a dead letter is kept, with the original
bytes. Whatever can be neither read nor acted on gets both, and is then acknowledged.
"""

import base64
from collections.abc import Mapping
from typing import Any

from protocol.wire.ids import NOBODY, is_token
from protocol.wire.notices import DeadLetter
from protocol.wire.subjects import note

MAX_DATA_BYTES = 256 * 1024
"""Bytes of the original that a dead letter keeps: as much as a proposal may have."""
MAX_HEADER_CHARS = 8 * 1024
"""Characters of its headers; JSON may make six of one, and all of it has to fit."""
MAX_DETAIL_CHARS = 512
"""Characters of a reason: one that names what a sender wrote must not grow with it."""


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


def note_subject(to: str, request: str) -> str:
    """Return where a notice goes; one about an id that no subject can hold goes to `_`."""
    return note(to, request if is_token(request) else NOBODY)
