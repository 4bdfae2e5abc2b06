"""What a stream keeps, read by direct gets, which leave nothing behind at the server.

No consumer is made or moved, so that any number of readers can look at once under one name. Any replica
may answer, with less than the leader has: good enough to show, never to decide.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import datetime
from typing import NamedTuple

import msgspec

from mesh.bus.connection import TIMEOUT_S, Bus
from mesh.bus.nats_protocol import Incoming
from mesh.bus.roles import GET
from mesh.errors import PASSING, ApiError, LogCutShort

BATCH = 1000
"""Messages asked for at once, unless told otherwise."""
MOST_BYTES = 1 << 20
"""Bytes asked for at once, beyond one message: what a slow link brings before anybody takes it for broken."""

_NO_MESSAGE = 404
_MOST = 2000
_AHEAD = 3
"""Reading ahead: messages in a batch, and batches on their way at once. It keeps reader and server busy."""
_FIRST = 100
"""Messages in the first batch, when nobody knows yet how large they are."""
_HEAD_BYTES = 300
"""About what a message has besides its data."""
_AGAIN_S = 0.05
_STREAM = b"\r\nNats-Stream: "
_PLACE = re.compile(
    _STREAM + rb"[^\r]*\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: (\d+)\r\nNats-Time-Stamp: ([^\r]*)\r\n"
)


class StoredMessage(NamedTuple):
    """A message of any stream."""

    seq: int
    subject: str
    data: bytes
    stamp: str = ""
    """When it was stored, as the server writes it."""

    @property
    def at(self) -> int:
        """When it was stored, UTC µs; 0 if the server did not say."""
        return microseconds(self.stamp) if self.stamp else 0


def microseconds(stamp: str) -> int:
    """Return a server's time stamp (RFC 3339, up to nine decimals, UTC) as UTC µs. Raises ValueError."""
    head, _, decimals = stamp.rstrip("Z").partition(".")
    whole = datetime.fromisoformat(f"{head}+00:00")
    return int(whole.timestamp()) * 1_000_000 + int(decimals[:6].ljust(6, "0") or 0)


async def batch(
    bus: Bus,
    stream: str,
    subject: str | None,
    from_seq: int,
    most: int = BATCH,
    *,
    timeout_s: float = TIMEOUT_S,
) -> list[StoredMessage]:
    """Return messages of a subject, of all without one, from `from_seq` on and in order.

    There are up to `most`. Fewer need not be the last ones: a batch ends early when it is large, or when
    the server is busy; none are. Where a subject is rare, asking for more than there is makes the server
    walk on to the stream's end. Raises BusError, as everything here does.
    """
    asked: dict[str, object] = {"seq": from_seq, "batch": most, "max_bytes": MOST_BYTES}
    if subject is not None:  # without one the server need not look for what matches: many times as fast
        asked["next_by_subj"] = subject
    answers = await bus.collect(f"{GET}{stream}", msgspec.json.encode(asked), timeout_s=timeout_s)
    return [stored_message(answer) for answer in answers]


async def up_to(
    bus: Bus, stream: str, subject: str | None, from_seq: int, most: int = BATCH
) -> list[StoredMessage]:
    """Return up to `most` messages of a subject from `from_seq` on, in order; fewer if there are no more."""
    found: list[StoredMessage] = []
    while len(found) < most:
        part = await batch(bus, stream, subject, from_seq, min(BATCH, most - len(found)))
        if not part:
            break
        found += part
        from_seq = part[-1].seq + 1
    return found


async def every(
    bus: Bus, stream: str, subject: str | None, from_seq: int = 1
) -> AsyncIterator[StoredMessage]:
    """Yield all messages of a subject from `from_seq` on, in order, up to the last there is."""
    while part := await batch(bus, stream, subject, from_seq):
        for each in part:
            yield each
        from_seq = part[-1].seq + 1


async def ahead(
    bus: Bus, stream: str, from_seq: int = 1, *, timeout_s: float = TIMEOUT_S
) -> AsyncGenerator[list[StoredMessage]]:
    """Yield all of a stream from `from_seq` to what is now the last, in order, in batches of one or more.

    Of the log, or another stream that nothing is ever taken out of but its beginning. While a batch is
    worked on, the next are on their way. What comes short of what was asked for, because it was large, or
    late, or a replica is behind, is asked for anew from where it ended, in smaller pieces. A bus that is
    away is waited for. Raises what does not pass by itself, and LogCutShort.
    """
    first, last = await bus.retry_unavailable(lambda: bounds(bus, stream))
    following = asking = max(from_seq, first)
    asked = deque[tuple[int, asyncio.Task[list[StoredMessage]]]]()
    size = _FIRST
    try:
        while following <= last:
            while len(asked) < _AHEAD and asking <= last:
                until = min(asking + size - 1, last)
                part = batch(bus, stream, None, asking, until - asking + 1, timeout_s=timeout_s)
                asked.append((until, asyncio.create_task(part)))
                asking = until + 1
            until, task = asked.popleft()
            try:
                found = [each for each in await task if following <= each.seq <= last]
            except PASSING:
                found = []
            if found:
                following = found[-1].seq + 1
                size = _fitting(found)
                yield found
            if following > until:
                continue
            await _give_up(asked)
            if not found:
                size = max(1, size // 4)
                await asyncio.sleep(_AGAIN_S)
                first, there = await bus.retry_unavailable(lambda: bounds(bus, stream))
                if there < last:
                    raise LogCutShort(last, there)
                following = max(following, first)  # the beginning may have gone meanwhile
            asking = following
    finally:
        await _give_up(asked)


def _fitting(found: list[StoredMessage]) -> int:
    """Return how many such messages fill half a batch: what is larger than expected still fits then."""
    average = sum(len(each.data) for each in found) // len(found) + _HEAD_BYTES
    return max(1, min(_MOST, MOST_BYTES // 2 // average))


async def _give_up(asked: deque[tuple[int, asyncio.Task[list[StoredMessage]]]]) -> None:
    tasks = [task for _, task in asked]
    asked.clear()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def get(bus: Bus, stream: str, subject: str) -> StoredMessage | None:
    """Return the last message under a subject, None if there is none."""
    message = await bus.request(f"{GET}{stream}.{subject}")
    return None if message.status == _NO_MESSAGE else stored_message(message)


async def get_seq(bus: Bus, stream: str, seq: int) -> StoredMessage | None:
    """Return the message at a sequence number, None if there is none."""
    message = await bus.request(f"{GET}{stream}", msgspec.json.encode({"seq": seq}))
    return None if message.status == _NO_MESSAGE else stored_message(message)


async def first_since(bus: Bus, stream: str, subject: str, since: str) -> StoredMessage | None:
    """Return the first message of a subject stored at `since` (RFC 3339) or later, None if there is none."""
    asked = {"batch": 1, "start_time": since, "next_by_subj": subject}
    answers = await bus.collect(f"{GET}{stream}", msgspec.json.encode(asked))
    return stored_message(answers[0]) if answers else None


async def bounds(bus: Bus, stream: str) -> tuple[int, int]:
    """Return the first and the last sequence number of a stream; (1, 0) or alike when it is empty."""
    state = (await bus.api(f"STREAM.INFO.{stream}"))["state"]
    return int(state["first_seq"]), int(state["last_seq"])


def stored_message(message: Incoming) -> StoredMessage:
    """Return what a direct get answered with. Raises ApiError where it is a refusal.

    The server's own headers stand behind the sender's, who may have chosen the same names. They are read
    without parsing all headers, which would take as long as everything else about a message.
    """
    place = _PLACE.match(message.head, message.head.rfind(_STREAM))
    if place is None:
        raise ApiError(
            GET.rstrip("."), message.status, message.description or "not what a direct get answers"
        )
    subject, seq, stamp = place.groups()
    return StoredMessage(int(seq), subject.decode("utf-8", "backslashreplace"), message.data, stamp.decode())
