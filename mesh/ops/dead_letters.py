"""Dead letters: as they are kept, and put back into the queue that they came from.

Anybody with a name writes their own letters, so what is in one is not believed. The admin alone publishes
under the name of who sent a message. So only what a guard kept is put back: its letters name the subject
under which the broker itself had stored the message.
"""

import asyncio
import base64
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator
from typing import Literal, NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import StoredMessage, bounds, every, get_seq
from mesh.bus.roles import GUARD
from mesh.errors import ControlRefused, Impossible, NotFound
from mesh.guard.parsing import is_submit
from mesh.ops.control import LOOK_S, Notices, Reader, noticed
from protocol.wire import codec, subjects
from protocol.wire.commands import id_of, submit_id
from protocol.wire.errors import Malformed
from protocol.wire.events import AnyEvent
from protocol.wire.ids import Cause, control_cause, is_request_id, submitted_ms
from protocol.wire.notices import DeadLetter
from protocol.wire.subjects import parse_dead

STREAM = "DEAD"
SUBJECTS = subjects.DEAD_LETTERS
_IN_VAIN = {
    "unusable_id": "its request id cannot be one, and never will",
    "request_exists": "its id belongs to another request; the same work needs a new id: mesh request submit",
}
"""Codes of letters that can only come back, and what to do instead."""


async def letters(bus: Bus, from_seq: int = 1) -> AsyncIterator[tuple[int, DeadLetter]]:
    """Yield all of them from `from_seq` on with their sequence numbers, the oldest first."""
    async for kept in every(bus, STREAM, SUBJECTS, from_seq):
        yield kept.seq, _letter(kept)


async def letter_at(bus: Bus, seq: int) -> DeadLetter:
    """Return one. Raises NotFound."""
    kept = await get_seq(bus, STREAM, seq)
    if kept is None:
        raise NotFound(f"there is no dead letter {seq}")
    return _letter(kept)


def _letter(kept: StoredMessage) -> DeadLetter:
    """Return a letter under the name that the broker knows, even if it cannot be read."""
    by = parse_dead(kept.subject)
    letter = codec.readable(kept.data, DeadLetter)
    if letter is not None:
        with contextlib.suppress(ValueError):
            base64.b64decode(letter.data)
            return msgspec.structs.replace(letter, by=by)
    return DeadLetter(
        at=kept.at,
        by=by,
        code="unreadable",
        detail="this is no dead letter as this version knows them",
        subject="",
        data=base64.b64encode(kept.data).decode(),
    )


# --- back into the queue --------------------------------------------------------------------------


class Parcel(NamedTuple):
    """A message as it goes back."""

    kind: Literal["prop", "ctl"]
    sender: str
    request: str
    subject: str
    body: bytes
    headers: dict[str, str]


def parcel(seq: int, letter: DeadLetter) -> Parcel:
    """Return what of a letter can be put back. Raises Impossible, saying why not and what to do instead."""
    if letter.by != GUARD:
        raise Impossible(
            f"letter {seq} is in {letter.by}'s own list: only what a guard kept can be put back, since its "
            "subject is the broker's word. If a request hangs by it: mesh request rerun ID"
        )
    if letter.truncated:
        raise Impossible(
            f"letter {seq} holds only the beginning of its message: whoever sent it must say it again"
        )
    try:
        sender, request = subjects.parse_queued(letter.subject)
    except ValueError:
        raise Impossible(
            f"letter {seq} is a timer, not somebody's message: a guard looks at the request again, and arms "
            f"its timer anew, with the next message about it: mesh request freeze {letter.request}, then thaw"
        ) from None
    kind: Literal["prop", "ctl"] = "prop" if letter.subject.startswith("mesh.prop.") else "ctl"
    if request == subjects.MESH_WIDE:
        raise Impossible(f"letter {seq} is about the whole mesh: say it anew, with mesh freeze or mesh thaw")
    reason = _IN_VAIN["unusable_id"] if not is_request_id(request) else _in_vain(letter, request)
    if reason is not None:
        raise Impossible(f"letter {seq} would only come back: {reason}")
    subject = (subjects.prop if kind == "prop" else subjects.ctl)(sender, request)
    headers = {name: value for name, value in letter.headers.items() if not name.startswith("Nats-")}
    return Parcel(kind, sender, request, subject, letter.original, headers)


def _in_vain(letter: DeadLetter, request: str) -> str | None:
    if letter.code == "stale_id" and submitted_ms(request) < time.time() * 1000:
        return "its id is too old; the same work needs a new one: mesh request submit"
    return _IN_VAIN.get(letter.code)


async def resend(bus: Bus, parcel: Parcel, *, within_s: float) -> AnyEvent:
    """Put a message back, and return the event by which it was decided.

    Raises Impossible when it was decided before, ControlRefused when it ends as a dead letter again or
    comes too late, TimeoutError when nothing has come of it within `within_s`.
    """
    cause = _cause(parcel)
    reader = Reader(bus, parcel.sender, parcel.request)
    before = None if cause is None else await reader.caused_by(cause)
    if before is not None:
        raise Impossible(f"it was decided before, by event {before.n} of {parcel.request}: nothing to do")
    dead_from = (await bounds(bus, STREAM))[1] + 1
    late = f"it is back in its queue, and no guard has taken it up within {within_s:g} s"
    async with noticed(bus, parcel.sender, parcel.request, within_s, late) as notices:
        await bus.publish_durable(parcel.subject, parcel.body, parcel.headers)
        while True:
            event = None if cause is None else await reader.caused_by(cause)
            if event is not None:
                return event
            await _raise_if_dead(bus, parcel, dead_from)
            _raise_if_late(parcel, notices)
            await asyncio.sleep(LOOK_S)


def _cause(parcel: Parcel) -> Cause | None:
    """Return what the event that decides it will name; None for what cannot be read."""
    try:
        if parcel.kind == "ctl":
            return control_cause(parcel.request, parcel.sender, codec.parse_control(parcel.body).id)
        if is_submit(parcel.body):
            codec.parse_submit(parcel.body)
            return Cause(submit_id(parcel.request))
        return Cause(id_of(parcel.request, codec.parse_proposal(parcel.body)))
    except Malformed:
        return None


async def _raise_if_dead(bus: Bus, parcel: Parcel, from_seq: int) -> None:
    async for seq, letter in letters(bus, from_seq):
        same = (letter.by, letter.sender, letter.request) == (GUARD, parcel.sender, parcel.request)
        if same and letter.original == parcel.body:
            raise ControlRefused(parcel.request, letter.code, f"{letter.detail} (dead letter {seq})")


def _raise_if_late(parcel: Parcel, notices: Notices) -> None:
    """Raise if the guard said that it was over. A notice about an error is a dead letter, too."""
    while (notice := notices.next()) is not None:
        of_another = notice.digest not in ("", hashlib.sha256(parcel.body).hexdigest())
        if notice.ended is not None and not of_another:
            raise ControlRefused(parcel.request, notice.ended.why, "it was over, so nothing came of it")
