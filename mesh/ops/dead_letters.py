"""Dead letters: listed, shown, and put back into the queue that they came from.

Every member writes its own letters, so their content is not trusted. Only the admin publishes under a
sender's name. So only what a guard kept is put back: a guard's letter names the subject under which the
broker itself had stored the message.
"""

import asyncio
import base64
import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import StoredMessage, bounds, every, get_seq
from mesh.bus.roles import GUARD
from mesh.errors import ControlRefused, Impossible, NotFound
from mesh.guard.messages import is_submit
from mesh.ops.batch import Caused, Order, causes_in
from mesh.ops.bulk import SHOWN, Chosen
from mesh.ops.control import LOOK_S, RequestReader, noticed
from mesh.ops.index import RequestIndex
from mesh.ops.requests import from_index
from mesh.ops.rows import IndexRow, Listed, words_of
from mesh.ops.where import Filter, matches
from mesh.service.printable import short
from protocol.wire import codec, subjects
from protocol.wire.commands import id_of, submit_id
from protocol.wire.errors import Malformed
from protocol.wire.events import AnyEvent
from protocol.wire.ids import Cause, control_cause, is_request_id, submitted_ms, submitter_of
from protocol.wire.records import DeadLetter
from protocol.wire.subjects import parse_dead

STREAM = "DEAD"
SUBJECTS = subjects.DEAD_LETTERS
_PROPOSAL_S = 20.0
_ORDER_S = 45.0
"""A guard retries an order for a missing request for a while before it gives up (s)."""
_BACK = 100
"""Most letters that usually lie between two about the same message: the second comes a lease later."""
_IN_VAIN = {
    "unusable_id": "its request id cannot be one, and never will",
    "request_exists": "its id belongs to another request; the same work needs a new id: mesh request submit",
}
"""Codes of letters that would only come back, and what to do instead."""


LetterKey = tuple[str, str, int, int]
"""The message that a letter is about: its list, and the message's subject, sequence and time in its own
stream.

Every member writes its own list. So a letter cannot hide a letter of another list.
"""


async def letters(
    bus: Bus, from_seq: int = 1, seen: set[LetterKey] | None = None
) -> AsyncIterator[tuple[int, DeadLetter]]:
    """Yield the first letter about each message with its sequence number, oldest first.

    An agent's process that dies after storing a letter leaves its message to another process, which stores a
    second letter. Guards never store two.

    Args:
        from_seq: the first sequence to yield. Those shortly before it are read, too, while `seen` is empty.
        seen: messages whose letters were already yielded; those of this call are added.
    """
    seen = set() if seen is None else seen
    async for kept in every(bus, STREAM, SUBJECTS, from_seq if seen else max(1, from_seq - _BACK)):
        letter = _letter(kept)
        message = (kept.subject, letter.subject, letter.stream_seq, letter.stored_at)
        if message not in seen or not letter.stream_seq:
            seen.add(message)
            if kept.seq >= from_seq:
                yield kept.seq, letter


async def letter_at(bus: Bus, seq: int) -> DeadLetter:
    """Return one letter. Raises NotFound."""
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
    """Put a message back, and return the event that decided it.

    Raises NotFound; Impossible if it cannot be put back (the text says what to do instead) or was already
    decided; ControlRefused if it becomes a dead letter again or is too late; TimeoutError if nothing has
    happened.
    """
    order = order_of(seq, await letter_at(bus, seq))
    sender, request, cause, body = order.sender, order.request, order.cause, order.body
    caused = RequestReader(bus, sender, request).caused_by
    before = await caused(cause) if cause else None
    if before is not None:
        raise Impossible(f"it was decided before, by event {before.n} of {request}: nothing to do")
    dead_from, seen = (await bounds(bus, STREAM))[1] + 1, set[LetterKey]()
    within_s = _ORDER_S if order.subject.startswith("mesh.ctl.") else _PROPOSAL_S
    late = f"it is back in its queue, and no guard has taken it up within {within_s:g} s"
    async with noticed(bus, sender, request, within_s, late) as notices:
        await bus.publish_durable(order.subject, body, order.headers)
        while True:
            event = await caused(cause) if cause else None
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


async def choose(
    bus: Bus,
    wanted: Filter,
    *,
    code: str | None = None,
    limit: int | None = None,
    folder: Path | None = None,
    on_work: Callable[[int], None] = lambda events: None,
) -> Chosen:
    """Return what there is to put back of the letters about the requests of a filter, the oldest first.

    A message that died several times is put back once, and none that was decided since. Of a request that is
    not in the log its client, its time and its text are known, so far as its submit can be read.

    Args:
        code: only letters with this code.
        limit: at most so many letters.
        folder: of the index of requests; None: a temporary one.
        on_work: is told how many events are still to be indexed, if they are many.

    Raises OldForm, BusError.
    """
    found = {
        (letter.subject, letter.data): (seq, letter)
        async for seq, letter in letters(bus)
        if code in (None, letter.code)
    }
    requests = {letter.request for _, letter in found.values()}

    def look(index: RequestIndex) -> tuple[set[str], set[str]]:
        return index.among(requests, wanted), requests - index.among(requests, Filter())

    fitting, unknown = await from_index(bus, look, folder=folder, whole=True, on_work=on_work)
    orders, shown, passed_over = list[Order](), list[str](), Counter[str]()
    decided: dict[str, Mapping[str, Caused]] = {}
    for seq, letter in found.values():
        if letter.request not in fitting and not (
            letter.request in unknown and matches(wanted, _row_of(seq, letter))
        ):
            continue
        order = _order(seq, letter)
        if order is None:
            passed_over["cannot be put back (mesh dead resend SEQ says why)"] += 1
            continue
        if order.decided_in not in decided:
            decided[order.decided_in] = await causes_in(bus, order.decided_in)
        if order.cause in decided[order.decided_in]:
            passed_over["decided since"] += 1
            continue
        orders.append(order)
        if len(shown) < SHOWN:
            shown.append(f"letter {seq}  {letter.code}, {letter.request}: {short(letter.detail, 100)}")
        if len(orders) == limit:
            break
    return Chosen(
        batch="",
        orders=tuple(orders),
        shown=tuple(shown),
        requests=len(orders),
        passed_over=dict(passed_over),
        effects={},
    )


def _row_of(seq: int, letter: DeadLetter) -> IndexRow:
    """Return what a letter says of a request that is not in the log."""
    client = submitter_of(letter.request) if is_request_id(letter.request) else letter.sender
    try:
        text = codec.parse_submit(letter.original).text if is_submit(letter.original) else ""
    except Malformed:
        text = ""
    listed = Listed(
        request=letter.request,
        last=seq,
        status="",
        holder="",
        client=client,
        opened=letter.at,
        at=letter.at,
        events=0,
        type="",
        text=text,
    )
    return IndexRow(listed, frozenset({f"client:{client}"}), words_of(text))


def _order(seq: int, letter: DeadLetter) -> Order | None:
    """Return a letter's message as it is put back; None for what would only come back."""
    try:
        order = order_of(seq, letter)
    except Impossible:
        return None
    return order if order.cause else None


def order_of(seq: int, letter: DeadLetter) -> Order:
    """Return what puts a letter back, without a cause if it cannot be read. Raises Impossible."""
    sender, request = _queued(seq, letter)
    is_control = letter.subject.startswith("mesh.ctl.")
    cause, turn = _cause(sender, request, letter.original, is_control=is_control)
    return Order(
        request=request,
        sender=sender,
        decided_in=request,
        subject=(subjects.ctl if is_control else subjects.prop)(sender, request),
        body=letter.original,
        cause=cause,
        turn=turn,
        headers={name: value for name, value in letter.headers.items() if not name.startswith("Nats-")},
    )


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


def _cause(sender: str, request: str, body: bytes, *, is_control: bool) -> tuple[Cause, str]:
    """Return what the event that decides a message will name, and the message's turn.

    Both are empty for what cannot be read.
    """
    try:
        if is_control:
            control = codec.parse_control(body)
            return control_cause(request, sender, control.id), control.turn or ""
        if is_submit(body):
            codec.parse_submit(body)
            return Cause(submit_id(request)), ""
        proposal = codec.parse_proposal(body)
        return Cause(id_of(request, proposal, sender)), proposal.turn
    except Malformed:
        return Cause(""), ""
