"""The dead letters that guards keep: a list for each sender, and no message in one twice.

A guard may die, or be frozen, between a letter and the acknowledgement of its message. Then the message comes
to another guard. So a letter is stored only behind a list that is known whole: the bus refuses it if another
letter came in between, and the list is read on from there.
"""

import asyncio
from collections import defaultdict
from typing import Any

from mesh.bus.connection import Bus
from mesh.bus.consumer import Message
from mesh.bus.reader import every, last
from mesh.bus.roles import GUARD
from mesh.bus.stores import store_dead_letter
from mesh.bus.streams import MOST_LETTERS
from mesh.errors import SequenceConflict
from protocol.wire import codec, subjects
from protocol.wire.ids import NOBODY
from protocol.wire.records import DeadLetter

_STREAM = "DEAD"
_PAUSE_S = 0.02

About = tuple[str, int, int]
"""The message that a letter is about: its subject, sequence and time in its own stream."""


class _List:
    """What is known of one list."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.read_up_to = 0
        self.known: dict[About, None] = {}
        """What its letters are about, those up to `read_up_to`, the oldest first."""
        self.tail: int | None = None
        """What the next letter must find as the last one; None if that has to be read."""

    def take(self, seq: int, about: About) -> None:
        self.read_up_to = seq
        self.known[about] = None
        if len(self.known) > MOST_LETTERS:
            self.known.pop(next(iter(self.known)))


class DeadLetters:
    """Keeps letters, those of one sender one after the other."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._lists = defaultdict[str, _List](_List)

    async def keep(self, sender: str, message: Message, **said: Any) -> bool:
        """Store the letter of a message unless it is there; return False if it could not be stored.

        Args:
            sender: empty where nobody sent it.
            said: fields of the letter.

        Raises BusError where the list cannot be read.
        """
        subject, kept = subjects.dead_from(sender or NOBODY), self._lists[sender]
        about = (message.subject, message.stream_seq, message.stored_us)
        async with kept.lock:
            while True:
                if kept.tail is None:
                    kept.tail = await self._read_on(subject, kept)
                if about in kept.known:
                    return True
                tail, kept.tail = kept.tail, None
                try:
                    seq = await store_dead_letter(
                        self._bus, subject, message, by=GUARD, sender=sender, after=tail, **said
                    )
                except SequenceConflict:
                    await asyncio.sleep(_PAUSE_S)  # for a replica behind the leader to catch up
                    continue
                if seq is not None:
                    kept.tail = seq
                    kept.take(seq, about)
                return seq is not None

    async def _read_on(self, subject: str, kept: _List) -> int:
        """Take in what the list has since it was read; return the sequence of its last letter."""
        newest = await last(self._bus, _STREAM, subject, leader=False)
        async for each in every(self._bus, _STREAM, subject, kept.read_up_to + 1):
            letter = codec.readable(each.data, DeadLetter)
            about = (letter.subject, letter.stream_seq, letter.stored_at) if letter else ("", each.seq, 0)
            kept.take(each.seq, about)
        return 0 if newest is None else kept.read_up_to  # 0: all of them were too old
