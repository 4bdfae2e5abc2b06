"""Reads streams by direct gets, which leave no state on the server, and reads the streams' own state.

No consumer is created or moved, so any number of readers can use one name. Any replica may answer a direct
get, and it may lag behind the leader. Use it to show something; to decide, ask the leader (`last`).
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from mesh.bus.connection import TIMEOUT_S, Bus
from mesh.bus.nats_protocol import Incoming
from mesh.bus.request_mux import ApiFailure
from mesh.bus.roles import GET
from mesh.errors import PASSING, ApiCode, ApiError, LogCutShort, NoResponders
from protocol.wire.subjects import STORED_IN

BATCH = 1000
"""Messages in one batch by default."""
MOST_BYTES = 1 << 20
"""Bytes in one batch, unless a single message is larger. A slow link can deliver them within a timeout."""

_NO_MESSAGE = 404
_MOST = 2000
_AHEAD = 3
"""Reading ahead: concurrent batches, so that reader and server are both busy."""
_FIRST = 100
"""Messages in the first batch, before their size is known."""
_HEAD_BYTES = 300
"""Estimated overhead of a message besides its data."""
_AGAIN_S = 0.05
_STREAM = b"\r\nNats-Stream: "
_PLACE = re.compile(
    _STREAM + rb"[^\r]*\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: (\d+)\r\nNats-Time-Stamp: ([^\r]*)\r\n"
)


class _Message(msgspec.Struct, frozen=True):
    subject: str
    seq: int
    data: bytes = b""
    time: str = ""


class _Got(msgspec.Struct, frozen=True):
    """The leader's answer."""

    message: _Message | None = None
    error: ApiFailure = ApiFailure()


_GOT = msgspec.json.Decoder(_Got)


class StoredMessage(NamedTuple):
    """A message in any stream."""

    seq: int
    subject: str
    data: bytes
    stamp: str = ""
    """Storage time in the server's format."""

    @property
    def at(self) -> int:
        """UTC µs at which it was stored; 0 if unknown."""
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
    """Return up to `most` messages of a subject (None: of all) from `from_seq` on, in order.

    A batch may end early if it is large or the server is busy; only an empty batch means that there are no
    more. If a subject is rare, asking for too many makes the server scan to the stream's end. Raises
    BusError, like all functions here.
    """
    asked: dict[str, object] = {"seq": from_seq, "batch": most, "max_bytes": MOST_BYTES}
    if subject is not None:  # without a subject the server need not match, which is much faster
        asked["next_by_subj"] = subject
    answers = await bus.collect(f"{GET}{stream}", msgspec.json.encode(asked), timeout_s=timeout_s)
    return [stored_message(answer) for answer in answers]


async def up_to(
    bus: Bus,
    stream: str,
    subject: str | None,
    from_seq: int,
    most: int = BATCH,
    *,
    timeout_s: float = TIMEOUT_S,
) -> list[StoredMessage]:
    """Return up to `most` messages of a subject from `from_seq` on, in order; fewer if there are no more."""
    found: list[StoredMessage] = []
    while len(found) < most:
        size = min(BATCH, most - len(found))
        part = await batch(bus, stream, subject, from_seq, size, timeout_s=timeout_s)
        if not part:
            break
        found += part
        from_seq = part[-1].seq + 1
    return found


async def every(
    bus: Bus, stream: str, subject: str | None, from_seq: int = 1
) -> AsyncIterator[StoredMessage]:
    """Yield all messages of a subject from `from_seq` on, in order, up to the last."""
    while part := await batch(bus, stream, subject, from_seq):
        for each in part:
            yield each
        from_seq = part[-1].seq + 1


async def newest(bus: Bus, stream: str, subject: str | None) -> list[StoredMessage]:
    """Return the last message of each subject that matches a filter (None: all)."""
    found = {each.subject: each async for each in every(bus, stream, subject)}
    return list(found.values())


async def ahead(
    bus: Bus, stream: str, from_seq: int = 1, *, timeout_s: float = TIMEOUT_S
) -> AsyncGenerator[list[StoredMessage]]:
    """Yield all messages of a stream from `from_seq` to its current end, in order, in batches.

    The stream must lose messages only at its beginning, like the log. The next batches are fetched while the
    caller works on one. If a batch is incomplete (too large, too late, or from a lagging replica), the rest
    is requested again in smaller pieces. Waits while the bus is away. Raises permanent errors, and
    LogCutShort.
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
                following = max(following, first)  # the beginning may be gone by now
            asking = following
    finally:
        await _give_up(asked)


def _fitting(found: list[StoredMessage]) -> int:
    """Return how many messages of this size fill half a batch. The other half leaves room for larger ones."""
    average = sum(len(each.data) for each in found) // len(found) + _HEAD_BYTES
    return max(1, min(_MOST, MOST_BYTES // 2 // average))


async def _give_up(asked: deque[tuple[int, asyncio.Task[list[StoredMessage]]]]) -> None:
    tasks = [task for _, task in asked]
    asked.clear()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def get(bus: Bus, stream: str, subject: str, *, timeout_s: float = TIMEOUT_S) -> StoredMessage | None:
    """Return the last message under a subject without wildcards; None if there is none."""
    message = await bus.request(f"{GET}{stream}.{subject}", timeout_s=timeout_s)
    return None if message.status == _NO_MESSAGE else stored_message(message)


async def last(
    bus: Bus, stream: str, subject: str, *, leader: bool, timeout_s: float = TIMEOUT_S
) -> StoredMessage | None:
    """Return the last message under a subject, which may have wildcards; None if there is none.

    Args:
        leader: ask the stream's leader, which has the newest message. False asks any replica.
    """
    asked: dict[str, object] = {"last_by_subj": subject}
    if leader:
        return await _ask_leader(bus, stream, asked, timeout_s)
    message = await bus.request(f"{GET}{stream}", msgspec.json.encode(asked), timeout_s=timeout_s)
    return None if message.status == _NO_MESSAGE else stored_message(message)


async def following(
    bus: Bus, stream: str, subject: str, from_seq: int, *, timeout_s: float = TIMEOUT_S
) -> StoredMessage | None:
    """Return the leader's first message of a subject from `from_seq` on; None if there is none."""
    return await _ask_leader(bus, stream, {"seq": from_seq, "next_by_subj": subject}, timeout_s)


async def _ask_leader(
    bus: Bus, stream: str, asked: dict[str, object], timeout_s: float
) -> StoredMessage | None:
    verb = f"STREAM.MSG.GET.{stream}"
    got = _GOT.decode((await bus.api_request(verb, msgspec.json.encode(asked), timeout_s=timeout_s)).data)
    if got.message is not None:
        return StoredMessage(got.message.seq, got.message.subject, got.message.data, got.message.time)
    if got.error.err_code == ApiCode.NO_MESSAGE_FOUND:
        return None
    raise ApiError(verb, got.error.err_code, got.error.description)


async def get_seq(bus: Bus, stream: str, seq: int) -> StoredMessage | None:
    """Return the message at a sequence number; None if there is none."""
    message = await bus.request(f"{GET}{stream}", msgspec.json.encode({"seq": seq}))
    return None if message.status == _NO_MESSAGE else stored_message(message)


async def first_since(bus: Bus, stream: str, subject: str, since: str) -> StoredMessage | None:
    """Return the first message of a subject stored at `since` (RFC 3339) or later; None if there is none."""
    asked = {"batch": 1, "start_time": since, "next_by_subj": subject}
    answers = await bus.collect(f"{GET}{stream}", msgspec.json.encode(asked))
    return stored_message(answers[0]) if answers else None


def stored_message(message: Incoming) -> StoredMessage:
    """Return the message in the answer to a direct get. Raises ApiError if the answer is an error.

    The server's headers come after the sender's, which may have the same names. They are found without
    parsing all headers, which would double the cost of a message.
    """
    place = _PLACE.match(message.head, message.head.rfind(_STREAM))
    if place is None:
        raise ApiError(
            GET.rstrip("."), message.status, message.description or "not what a direct get answers"
        )
    subject, seq, stamp = place.groups()
    return StoredMessage(int(seq), subject.decode("utf-8", "backslashreplace"), message.data, stamp.decode())


# --- configuration, state and replicas of streams ---------------------------------------------------
# `STREAM.INFO` returns the same as `STREAM.LIST` and, on request, every subject of a stream: seconds of
# server work for a small request. Permissions cannot tell the two apart, so viewers and operators only list.

_LIST = "STREAM.LIST"
_LIST_S = 10.0
"""A cluster's servers wait 4 s for a stream without a leader before they answer."""


class Use(NamedTuple):
    """How much a stream has of what it may have."""

    limit: str
    """`max_bytes` or `max_msgs`."""
    most: int
    used: int

    @property
    def share(self) -> float:
        return self.used / self.most


class Listing(NamedTuple):
    """Streams by name, and the names of streams without a leader, whose state is unknown."""

    streams: dict[str, dict[str, Any]]
    leaderless: frozenset[str]

    def used(self, stream: str) -> Iterator[Use]:
        """Yield how much of each of its limits a stream has. Raises as `info`.

        A stream that drops its oldest messages is never full, so nothing is told of it.
        """
        info = self.info(stream)
        if info["config"]["discard"] == "old":
            return
        for limit, count in (("max_bytes", "bytes"), ("max_msgs", "messages")):
            most = int(info["config"].get(limit, -1))
            if most > 0:
                yield Use(limit, most, int(info["state"][count]))

    def info(self, stream: str) -> dict[str, Any]:
        """Return configuration and state of a stream.

        Raises NoResponders if it has no leader, and ApiError if it does not exist.
        """
        if stream in self.streams:
            return self.streams[stream]
        if stream in self.leaderless:
            raise NoResponders(f"the stream {stream} has no leader at the moment")
        raise ApiError(_LIST, ApiCode.STREAM_NOT_FOUND, f"stream {stream} not found")


async def listing(bus: Bus, subject: str | None = None) -> Listing:
    """Return all streams, or those that store `subject`. Raises BusError."""
    streams, leaderless = dict[str, dict[str, Any]](), set[str]()
    asked: dict[str, Any] = {} if subject is None else {"subject": subject}
    offset, total = 0, 1
    while offset < total:
        page = await _page(bus, {**asked, "offset": offset})
        found, missing = page.get("streams") or [], page.get("missing") or []
        streams |= {each["config"]["name"]: each for each in found}
        leaderless |= set(missing)
        offset, total = offset + len(found) + len(missing), int(page["total"]) if found or missing else 0
    return Listing(streams, frozenset(leaderless - streams.keys()))


async def _page(bus: Bus, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        return await bus.api(_LIST, asked, timeout_s=_LIST_S)
    except ApiError as error:
        if error.err_code != ApiCode.CLUSTER_NOT_AVAILABLE:
            raise
        raise NoResponders("the servers of the bus have no leader at the moment") from None


async def stream_info(bus: Bus, stream: str) -> dict[str, Any]:
    """Return configuration and state of one stream. Raises as `Listing.info`, and BusError."""
    subjects = STORED_IN.get(stream)
    return (await listing(bus, subjects[0] if subjects else None)).info(stream)


async def bounds(bus: Bus, stream: str) -> tuple[int, int]:
    """Return the first and the last sequence of a stream; if it is empty, the first is the larger one.

    Raises as `stream_info`.
    """
    state = (await stream_info(bus, stream))["state"]
    return max(1, int(state["first_seq"])), int(
        state["last_seq"]
    )  # the server reports 0 before the first message
