"""Dead letters: listed, shown, and put back into the queue that they came from.

Every member writes its own letters, so their content is not believed. The admin alone publishes under a
sender's name. So only what a guard kept is put back: its letters name the subject under which the broker
itself had stored the message.
"""

import asyncio
import base64
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import StoredMessage, bounds, every, get_seq
from mesh.bus.roles import GUARD
from mesh.errors import ControlRefused, Impossible, NotFound
from mesh.guard.messages import is_submit
from mesh.ops.control import LOOK_S, RequestReader, noticed
from protocol.wire import codec, subjects
from protocol.wire.commands import id_of, submit_id
from protocol.wire.errors import Malformed
from protocol.wire.events import AnyEvent
from protocol.wire.ids import Cause, control_cause, is_request_id, submitted_ms
from protocol.wire.records import DeadLetter
from protocol.wire.subjects import parse_dead

STREAM = "DEAD"
SUBJECTS = subjects.DEAD_LETTERS
_PROPOSAL_S = 20.0
_ORDER_S = 45.0
"""A guard keeps trying an order for a request that is not there, for a while, before it gives it up."""
_BACK = 100
"""Most letters that usually lie between two about the same message: the second comes a lease later."""
_IN_VAIN = {
    "unusable_id": "its request id cannot be one, and never will",
    "request_exists": "its id belongs to another request; the same work needs a new id: mesh request submit",
}
"""Codes of letters that can only come back, and what to do instead."""


Buried = tuple[str, str, int, int]
"""Which message a letter is about: its list, and the message's subject, sequence and time in its own stream.

Every member writes its own list. So no letter hides one of another list.
"""


async def letters(
    bus: Bus, from_seq: int = 1, told: set[Buried] | None = None
) -> AsyncIterator[tuple[int, DeadLetter]]:
    """Yield the first letter about each message with its sequence number, the oldest first.

    An agent's process that dies after it has stored a letter leaves its message to another one, which stores
    a second. Guards store none twice.

    Args:
        from_seq: the first sequence to yield. Those shortly before it are read, too, while `told` is empty.
        told: messages whose letters were yielded before; those of this call are added.
    """
    told = set() if told is None else told
    async for kept in every(bus, STREAM, SUBJECTS, from_seq if told else max(1, from_seq - _BACK)):
        letter = _letter(kept)
        message = (kept.subject, letter.subject, letter.stream_seq, letter.stored_at)
        if message not in told or not letter.stream_seq:
            told.add(message)
            if kept.seq >= from_seq:
                yield kept.seq, letter


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


async def resend(bus: Bus, seq: int) -> AnyEvent:
    """Put a message back, and return the event by which it was decided.

    Raises NotFound; Impossible when it cannot be put back (which says what to do instead) or was decided
    before; ControlRefused when it ends as a dead letter again or comes too late; TimeoutError when nothing
    has come of it.
    """
    letter = await letter_at(bus, seq)
    sender, request = _queued(seq, letter)
    is_order, body = letter.subject.startswith("mesh.ctl."), letter.original
    subject = (subjects.ctl if is_order else subjects.prop)(sender, request)
    headers = {name: value for name, value in letter.headers.items() if not name.startswith("Nats-")}
    cause = _cause(sender, request, body, is_order=is_order)
    caused = RequestReader(bus, sender, request).caused_by
    before = None if cause is None else await caused(cause)
    if before is not None:
        raise Impossible(f"it was decided before, by event {before.n} of {request}: nothing to do")
    dead_from, seen = (await bounds(bus, STREAM))[1] + 1, set[Buried]()
    within_s = _ORDER_S if is_order else _PROPOSAL_S
    late = f"it is back in its queue, and no guard has taken it up within {within_s:g} s"
    async with noticed(bus, sender, request, within_s, late) as notices:
        await bus.publish_durable(subject, body, headers)
        while True:
            event = None if cause is None else await caused(cause)
            if event is not None:
                return event
            async for number, dead in letters(bus, dead_from, seen):
                same = (dead.by, dead.sender, dead.request) == (GUARD, sender, request)
                if same and dead.original == body:
                    raise ControlRefused(request, dead.code, f"{dead.detail} (dead letter {number})")
            while (notice := notices.next()) is not None:  # one about an error is a dead letter, too
                if notice.ended is not None and notice.digest in ("", hashlib.sha256(body).hexdigest()):
                    raise ControlRefused(request, notice.ended.why, "it was over, so nothing came of it")
            await asyncio.sleep(LOOK_S)


def _queued(seq: int, letter: DeadLetter) -> tuple[str, str]:
    """Return the sender and the request of a message that can be put back. Raises Impossible."""
    if letter.by != GUARD:
        raise Impossible(
            f"letter {seq} is in {letter.by}'s own list: only what a guard kept can be put back, since its "
            "subject is the broker's word. If a request hangs by it: mesh request rerun ID"
        )
    if letter.truncated:
        raise Impossible(f"letter {seq} has only the beginning of its message: its sender must say it again")
    try:
        sender, request = subjects.parse_queued(letter.subject)
    except ValueError:
        raise Impossible(
            f"letter {seq} is a timer, not a member's message: a guard looks at the request again, and arms "
            f"its timer anew, with the next message about it: mesh request freeze {letter.request}, then thaw"
        ) from None
    if request == subjects.MESH_WIDE:
        raise Impossible(f"letter {seq} is about the whole mesh: say it anew, with mesh freeze or mesh thaw")
    reason = _IN_VAIN.get(letter.code if is_request_id(request) else "unusable_id")
    if letter.code == "stale_id" and is_request_id(request) and submitted_ms(request) < time.time() * 1000:
        reason = "its id is too old; the same work needs a new one: mesh request submit"
    if reason is not None:
        raise Impossible(f"letter {seq} would only come back: {reason}")
    return sender, request


def _cause(sender: str, request: str, body: bytes, *, is_order: bool) -> Cause | None:
    """Return what the event that decides it will name; None for what cannot be read."""
    try:
        if is_order:
            return control_cause(request, sender, codec.parse_control(body).id)
        if is_submit(body):
            codec.parse_submit(body)
            return Cause(submit_id(request))
        return Cause(id_of(request, codec.parse_proposal(body), sender))
    except Malformed:
        return None
