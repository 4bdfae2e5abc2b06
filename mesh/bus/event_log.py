"""The log of events, and the only code that writes to it: append by compare-and-set, read, follow.

Every append of every writer uses the same filter, `mesh.evt.*.<request>`. On a replicated stream a
compare-and-set is only safe against writers that use exactly the same filter string. So nothing but this file
publishes to `mesh.evt.`. The log does not interpret events. In a body it reads only `n`, the event's number
within its request.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import StoredMessage, ahead, batch, bounds, last, listing, up_to
from mesh.errors import LogCutShort, LogUnreadable, Malformed
from protocol.wire import codec
from protocol.wire.subjects import EVENTS, evt, evt_of

STREAM = "LOG"
_READ_ATTEMPTS = 5
_READ_PAUSE_S = 0.05
_TIMEOUT_S = 5.0
_BATCH = 256
"""Events in one batch while following."""
_POLL_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Pauses between polls: short after an event, then longer and longer."""


class _Numbered(msgspec.Struct, frozen=True):
    n: int


def number_of(stored: StoredMessage) -> int:
    """Return an event's number within its request. Raises Malformed."""
    numbered = codec.readable(stored.data, _Numbered)
    if numbered is None:
        raise Malformed(f"the event at {stored.seq} has no number")
    return numbered.n


class _Form(msgspec.Struct, frozen=True):
    type: str = ""
    v: int = 0


async def has_log(bus: Bus) -> bool:
    """Return True if there is a log, even an empty one. Raises BusError."""
    return STREAM in (await listing(bus, EVENTS)).streams


async def check_form(bus: Bus) -> None:
    """Raise OldForm if only earlier builds can read the log, judging by its first event. Raises BusError."""
    for first in await batch(bus, STREAM, None, 1, 1):
        form = codec.readable(first.data, _Form) or _Form()
        codec.check_form(form.type, form.v)


class JetStreamLog:
    """The log in the stream LOG. Bodies are JSON objects with an integer `n`, dense from 0 within a request.

    Args:
        bus: a guard's connection. A viewer's connection can read and follow, but may not append.
        leader: ask the stream's leader for the head. False asks any replica, which may return an older head:
            use it to show something, never to decide.
    """

    def __init__(self, bus: Bus, *, leader: bool = True, timeout_s: float = _TIMEOUT_S) -> None:
        self._bus = bus
        self._leader = leader
        self._timeout_s = timeout_s

    async def append(
        self, to: str, request: str, body: bytes, *, after: int, headers: Mapping[str, str] | None = None
    ) -> int:
        """Append one event if the request's head is `after` (0: it has none); return its sequence.

        Raises SequenceConflict if the head differs: read again, decide again. Raises OutcomeUnknown if the
        event may or may not be stored: read the head first, never append blindly.
        """
        conditions = {
            **(headers or {}),
            "Nats-Expected-Stream": STREAM,
            "Nats-Expected-Last-Subject-Sequence-Subject": evt_of(request),
        }
        ack = await self._bus.publish_durable(
            evt(to, request), body, conditions, after=after, timeout_s=self._timeout_s
        )
        return ack.seq

    async def head(self, request: str) -> StoredMessage | None:
        """Return a request's last event; None if it has none. With `leader`, it includes the last append.

        The next append to the request must name its sequence.
        """
        return await last(self._bus, STREAM, evt_of(request), leader=self._leader, timeout_s=self._timeout_s)

    async def read(self, request: str) -> list[StoredMessage]:
        """Return all events of a request in order, up to the head at the time of the call.

        Raises LogUnreadable if events are missing, and Malformed if the head has no `n`.
        """
        missing = ""
        for attempt in range(_READ_ATTEMPTS):
            await asyncio.sleep(_READ_PAUSE_S * attempt)  # lets a lagging replica catch up
            head = await self.head(request)
            if head is None:
                return []
            count = number_of(head) + 1
            if count == 1:
                return [head]
            # The exact count matters: the server would scan to the end of the log for more.
            found = await up_to(self._bus, STREAM, evt_of(request), 1, count, timeout_s=self._timeout_s)
            if len(found) == count and found[-1].seq == head.seq:
                return found
            missing = f"{len(found)} of {count} events up to {head.seq}"
        raise LogUnreadable(request, missing)

    async def follow(self, from_seq: int = 1, *, tail: bool = True) -> AsyncGenerator[StoredMessage]:
        """Yield every event of the log in order from `from_seq` on (inclusive), each once.

        With `tail` it also yields later events and never ends by itself. Without it, it ends at the event
        that is last at the time of the call. While the bus is away, it waits. Raises LogCutShort if the bus
        comes back with another log.
        """
        following = max(1, from_seq)
        since_s = self._bus.since_s  # the connection on which the log was known to reach that far
        async with aclosing(ahead(self._bus, STREAM, following, timeout_s=self._timeout_s)) as parts:
            async for part in parts:
                since_s = self._bus.since_s
                for each in part:
                    yield each
                following = part[-1].seq + 1
        while tail:
            part = await self._next(following, since_s)
            since_s = self._bus.since_s
            for each in part:
                yield each
            following = part[-1].seq + 1

    async def _next(self, following: int, since_s: float) -> list[StoredMessage]:
        """Wait until there are events from `following` on, and return the first batch.

        A connection made after `since_s` may have another log. Raises LogCutShort.
        """
        pauses = itertools.chain(_POLL_S, itertools.repeat(_POLL_S[-1]))
        part: list[StoredMessage] = []
        while not part:
            await asyncio.sleep(next(pauses))
            part = await self._bus.retry_unavailable(
                lambda: batch(self._bus, STREAM, None, following, _BATCH, timeout_s=self._timeout_s)
            )
            if not part and self._bus.since_s != since_s:
                since_s = self._bus.since_s
                _, end = await self._bus.retry_unavailable(lambda: bounds(self._bus, STREAM))
                if end < following - 1:
                    raise LogCutShort(following - 1, end)
        return part
