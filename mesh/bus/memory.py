"""Conversations' memory on the bus: the answers in LOG, and the records derived from them.

Each client has its own stream, `MEM-<client>`: one record for each fact, one for each order to forget, one
for who spoke last in a conversation, and one for the sequence in LOG up to which everything is in the
records. Guards write them; a client reads its own. Records may lag behind LOG, so decisions read both.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.event_log import STREAM as LOG
from mesh.bus.reader import StoredMessage, batch, every, following, get, last
from mesh.bus.streams import memory_of
from mesh.errors import LogUnreadable, SequenceConflict
from protocol.domain.memory import MemoryEntry, left_by, speaker_in, supersedes
from protocol.wire import codec, subjects
from protocol.wire.errors import Malformed, UnknownEvent
from protocol.wire.event import VERSION
from protocol.wire.events import TYPES, FactsWithheld, RequestCompleted, TurnSuspended, type_of
from protocol.wire.ids import NOBODY
from protocol.wire.records import MemoryFolded, MemoryForgotten, MemoryRecord, MemorySpeaker

_ATTEMPTS = 8
_AGAIN_S = 0.02

# --- the records ------------------------------------------------------------------------------------


class Memory(NamedTuple):
    """The records of one conversation of a client, or of all its conversations."""

    entries: tuple[MemoryEntry, ...]
    unreadable: tuple[str, ...] = ()
    """Subjects of records that cannot be read."""
    closed: bool = False
    """True if one of them is an order to forget. What it covers is unknown, so nothing may be shown."""


async def read_memory(bus: Bus, client: str, conversation: str | None = None) -> Memory:
    """Return what any replica has of a client's conversation, or of all its conversations. Raises BusError.

    If a conversation has an unreadable order to forget, none of its facts are returned. A later order to
    forget the whole conversation resolves that.
    """
    found = every(bus, memory_of(client), subjects.memories(client, conversation))
    return _memory([each async for each in found])


async def current_memory(bus: Bus, client: str, conversation: str) -> Memory:
    """Return the current records of a conversation, as the stream's leader has them.

    Raises BusError, and LogUnreadable if the replicas lag for too long.
    """
    stream, filter_ = memory_of(client), subjects.memories(client, conversation)
    for attempt in range(_ATTEMPTS):
        await asyncio.sleep(_AGAIN_S * attempt)
        newest = await last(bus, stream, filter_, leader=True)
        if newest is None:
            return Memory(())
        found = [each async for each in every(bus, stream, filter_)]
        if found and found[-1].seq >= newest.seq:
            return _memory(found)
    raise LogUnreadable(stream, f"no replica has what the leader has of {filter_}")


def _memory(found: list[StoredMessage]) -> Memory:
    """Return the memory in these messages, which are in stream order."""
    entries, unreadable = list[tuple[str, MemoryEntry]](), dict[str, str]()
    closed = dict[str, str]()
    for each in found:
        kind, conversation = _kind_of(each.subject), each.subject.rpartition(".")[0]
        entry = codec.readable(each.data, kind)
        if kind is MemoryFolded or kind is MemorySpeaker or isinstance(entry, MemoryFolded | MemorySpeaker):
            continue
        if entry is None:
            unreadable[each.subject] = conversation
            if kind is MemoryForgotten:
                closed[conversation] = each.subject
            continue
        if isinstance(entry, MemoryForgotten) and not entry.keys:
            closed.pop(conversation, None)
        entries.append((conversation, entry))
    shown = tuple(entry for conversation, entry in entries if conversation not in closed)
    return Memory(shown, tuple(unreadable), bool(closed))


def _kind_of(subject: str) -> type[MemoryEntry | MemorySpeaker | MemoryFolded]:
    *_, conversation, name = subject.split(".")
    if conversation == NOBODY:
        return MemoryFolded if name == NOBODY else MemorySpeaker
    return MemoryForgotten if name.startswith(NOBODY) else MemoryRecord


async def last_speaker(bus: Bus, client: str, conversation: str) -> MemorySpeaker | None:
    """Return the record of who spoke last, as the stream's leader has it; None if there is none.

    Raises BusError.
    """
    found = await last(bus, memory_of(client), subjects.speaker(client, conversation), leader=True)
    return None if found is None else codec.readable(found.data, MemorySpeaker)


async def speakers(bus: Bus, client: str, conversation: str | None = None) -> list[MemorySpeaker]:
    """Return what any replica has of who spoke last in one or all of a client's conversations.

    Raises BusError.
    """
    found = every(bus, memory_of(client), subjects.speaker(client, conversation))
    kept = [
        codec.readable(each.data, MemorySpeaker)
        async for each in found
        if each.subject != subjects.folded(client)
    ]
    return [each for each in kept if each is not None]


async def write_record(bus: Bus, client: str, record: MemoryRecord | MemorySpeaker) -> None:
    """Write a record, unless there is one of a later event. Idempotent.

    Raises BusError, and SequenceConflict if other guards were faster every time.
    """
    body = msgspec.json.encode(record)
    if isinstance(record, MemoryRecord):
        subject = subjects.memory(client, record.conversation, record.key)
    else:
        subject = subjects.speaker(client, record.conversation)
    for left in reversed(range(_ATTEMPTS)):
        found = await get(bus, memory_of(client), subject)
        current = None if found is None else codec.readable(found.data, type(record))
        if not supersedes(record, current):
            return
        try:
            await bus.publish_durable(subject, body, after=0 if found is None else found.seq)
        except SequenceConflict:
            if not left:
                raise
            await asyncio.sleep(_AGAIN_S)  # another guard was first, or this replica lags
        else:
            return


async def write_forgotten(bus: Bus, client: str, sender: str, entry: MemoryForgotten) -> None:
    """Write the record of an order to forget from `sender`, unless it exists. Raises BusError."""
    subject = subjects.forgotten(client, entry.conversation, sender, entry.control)
    try:
        await bus.publish_durable(subject, msgspec.json.encode(entry), after=0)
    except SequenceConflict:
        return


async def is_obeyed(bus: Bus, client: str, conversation: str, sender: str, order: str) -> bool:
    """Return True if an order to forget was carried out. Raises BusError."""
    subject = subjects.forgotten(client, conversation, sender, order)
    return await last(bus, memory_of(client), subject, leader=False) is not None


class Reached(NamedTuple):
    """How far into LOG a client's records reach."""

    seq: int = 0
    written: int = 0
    """Sequence of the record of it, in the client's own stream; 0 if there is none."""


async def reached(bus: Bus, client: str) -> Reached:
    """Return how far into LOG a client's records reach; 0 if that cannot be read."""
    found = await last(bus, memory_of(client), subjects.folded(client), leader=True)
    if found is None:
        return Reached()
    folded = codec.readable(found.data, MemoryFolded)
    return Reached(0 if folded is None else folded.seq, found.seq)


async def write_reached(bus: Bus, client: str, seq: int, current: Reached) -> None:
    """Record how far the records reach now. Raises SequenceConflict if another guard did, and BusError."""
    body = msgspec.json.encode(MemoryFolded(seq=seq))
    await bus.publish_durable(subjects.folded(client), body, after=current.written)


async def set_back(bus: Bus, client: str, end: int) -> None:
    """Lower the sequences in a client's records to `end`, the last sequence of a restored LOG.

    Otherwise a new answer would be older than such a record. Raises BusError, and SequenceConflict if a guard
    writes at the same time.
    """
    async for each in every(bus, memory_of(client), subjects.memories(client)):
        entry = codec.readable(each.data, _kind_of(each.subject))
        if entry is not None and entry.seq > end:
            body = msgspec.json.encode(msgspec.structs.replace(entry, seq=end))
            await bus.publish_durable(each.subject, body, after=each.seq)


# --- the answers ------------------------------------------------------------------------------------


class _Head(msgspec.Struct, frozen=True):
    """The fields that tell if a conversation remembers something of an event."""

    type: str
    v: int
    conversation: str | None = None


_REMEMBERED = frozenset({type_of(RequestCompleted), type_of(TurnSuspended)})
_TYPES = frozenset(TYPES.values())


async def newer_than(bus: Bus, client: str, seq: int) -> AsyncIterator[StoredMessage]:
    """Yield a client's events after `seq` in LOG, in order, up to the leader's newest. Raises BusError."""
    inbox = subjects.inbox(client)
    while (found := await following(bus, LOG, inbox, seq + 1)) is not None:
        yield found
        seq = found.seq
        for each in await batch(bus, LOG, inbox, seq + 1):
            yield each
            seq = each.seq


def leaves_to(stored: StoredMessage) -> str | None:
    """Return the conversation that remembers something of a client's event; None if none does.

    Raises Malformed for bytes that are not an event, UnknownEvent for a type or form unknown to this build.
    """
    head = codec.readable(stored.data, _Head)
    if head is None:
        raise Malformed(f"the event at {stored.seq} cannot be read")
    codec.check_form(head.type, head.v)
    if head.v != VERSION or head.type not in _TYPES:
        raise UnknownEvent(head.type, head.v)
    return head.conversation if head.type in _REMEMBERED else None


async def left_in(bus: Bus, stored: StoredMessage) -> tuple[MemoryRecord | MemorySpeaker, ...]:
    """Return what an answer or a question leaves to its conversation (see `leaves_to`).

    Raises BusError, ProtocolError, and LogUnreadable if the facts are not in the event before it.
    """
    answer = codec.decode_event(stored.data)
    speaker = speaker_in(answer, stored.seq, stored.at)
    spoken = () if speaker is None else (speaker,)
    if isinstance(answer, TurnSuspended):
        return spoken
    before = await last(bus, LOG, subjects.evt(NOBODY, answer.request), leader=True)
    if before is None:
        return ()  # the log has dropped it, and will drop the answer next
    kept = codec.decode_event(before.data)
    if not (
        isinstance(answer, RequestCompleted)
        and isinstance(kept, FactsWithheld)
        and (kept.n, kept.cause) == (answer.n - 1, answer.cause)
    ):
        raise LogUnreadable(answer.request, f"what the answer at {stored.seq} leaves is not before it")
    return (*left_by(answer, kept, stored.seq, stored.at), *spoken)
