"""The log of events: append with a compare-and-set, read a request up to its head, follow everything.

Every append of every writer carries the same filter, `mesh.evt.*.<request>`: on a replicated stream a
compare-and-set is only safe against writers that use the very same filter string. That is why nothing
but this file publishes to `mesh.evt.`. The log knows nothing of what events mean; the one thing it reads
in a body is `n`, the event's number within its request.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple, Protocol

import msgspec

from mesh.bus.connection import Bus, Subscription
from mesh.bus.roles import GET, NEXT
from mesh.bus.streams import NS
from mesh.bus.wire import Incoming
from mesh.errors import (
    ApiError,
    LogUnreadable,
    Malformed,
    OutcomeUnknown,
    PublishRefused,
    SequenceConflict,
    Unreachable,
)
from protocol.subjects import evt, evt_of, parse_evt

STREAM = "LOG"
CONFLICTS = (10071, 10164)
"""JetStream's codes of a lost compare-and-set: the head is elsewhere; another write is on its way."""

_NO_MESSAGE = 10037
_READ_ATTEMPTS = 5
_READ_PAUSE_S = 0.05
_TIMEOUT_S = 5.0
_BATCH = 64
"""Events asked for at once: the server drops a reader to whom it owes more than 64 MiB."""


class Stored(NamedTuple):
    """One event as it stands in the log."""

    seq: int
    """Its position in the whole log; also what the next append of its request must name."""
    to: str
    """Whose inbox it lies in; `_` for nobody's."""
    body: bytes


class EventLog(Protocol):
    """The port. Bodies are JSON objects with an integer `n`, dense from 0 within a request."""

    async def append(
        self, to: str, request: str, body: bytes, *, after: int, headers: Mapping[str, str] | None = None
    ) -> int:
        """Append one event if the request's head is `after` (0: it has none); return its position.

        Raises SequenceConflict when the head is elsewhere: read again, decide again. Raises OutcomeUnknown
        when nobody can say whether it was stored: read the head before anything else, never append blindly.
        """

    async def head(self, request: str) -> Stored | None:
        """Return a request's last event, None if it has none. Never an older one than was appended."""

    async def read(self, request: str) -> list[Stored]:
        """Return all events of a request in order, up to a head that was the last when it was read.

        Raises LogUnreadable when events are missing, and Malformed when the head has no `n`.
        """

    def follow(self, consumer: str, from_seq: int = 1, *, tail: bool = True) -> AsyncIterator[Stored]:
        """Yield every event of the log in order from `from_seq` on (inclusive), each once.

        With `tail` it waits for what is appended later and never ends by itself; without, it ends at the
        event that is the last at that moment. `consumer` is the reader's own; two readers of one consumer
        at a time slow each other down.
        """


class _Numbered(msgspec.Struct, frozen=True):
    n: int


class _Message(msgspec.Struct, frozen=True):
    subject: str
    seq: int
    data: bytes = b""


class _Got(msgspec.Struct, frozen=True):
    message: _Message | None = None
    error: dict[str, object] | None = None


_NUMBER = msgspec.json.Decoder(_Numbered)
_GOT = msgspec.json.Decoder(_Got)


def number_of(stored: Stored) -> int:
    """Return an event's number within its request. Raises Malformed."""
    try:
        return _NUMBER.decode(stored.body).n
    except msgspec.MsgspecError as broken:
        raise Malformed(f"the event at {stored.seq} has no number") from broken


class JetStreamLog:
    """The log in the stream LOG.

    Args:
        bus: a guard's connection; a viewer's reads and follows, and is denied appending.
        leader: whether the head is asked of the stream's leader. False asks any replica, which may
            answer with an older one: good enough to show, never to decide.
    """

    def __init__(self, bus: Bus, *, leader: bool = True, timeout_s: float = _TIMEOUT_S) -> None:
        self._bus = bus
        self._leader = leader
        self._timeout_s = timeout_s

    async def append(
        self, to: str, request: str, body: bytes, *, after: int, headers: Mapping[str, str] | None = None
    ) -> int:
        expected = {
            "Nats-Expected-Stream": STREAM,
            "Nats-Expected-Last-Subject-Sequence": str(after),
            "Nats-Expected-Last-Subject-Sequence-Subject": evt_of(request),
        }
        merged = {**headers, **expected} if headers else expected
        try:
            ack = await self._bus.publish_durable(evt(to, request), body, merged, timeout_s=self._timeout_s)
        except PublishRefused as refused:
            if refused.err_code in CONFLICTS:
                raise SequenceConflict(request, after) from None
            raise
        return ack.seq

    async def head(self, request: str) -> Stored | None:
        if self._leader:
            return await self._leaders_head(request)
        body = msgspec.json.encode({"last_by_subj": evt_of(request)})
        message = await self._bus.request(GET + STREAM, body, timeout_s=self._timeout_s)
        return None if message.status == 404 else _from_direct(message)

    async def _leaders_head(self, request: str) -> Stored | None:
        verb = f"STREAM.MSG.GET.{STREAM}"
        body = msgspec.json.encode({"last_by_subj": evt_of(request)})
        got = _GOT.decode((await self._bus.api_request(verb, body, timeout_s=self._timeout_s)).data)
        if got.message is not None:
            return Stored(got.message.seq, parse_evt(got.message.subject).to, got.message.data)
        code = int(str((got.error or {}).get("err_code", 0)))
        if code == _NO_MESSAGE:
            return None
        raise ApiError(verb, code, str((got.error or {}).get("description", "")))

    async def read(self, request: str) -> list[Stored]:
        missing = ""
        for attempt in range(_READ_ATTEMPTS):
            await asyncio.sleep(_READ_PAUSE_S * attempt)  # for a replica behind the leader to catch up
            head = await self.head(request)
            if head is None:
                return []
            count = number_of(head) + 1
            if count == 1:
                return [head]
            found = await self._batch(request, count)
            if len(found) == count and found[-1].seq == head.seq:
                return found
            missing = f"{len(found)} of {count} events up to {head.seq}"
        raise LogUnreadable(request, missing)

    async def _batch(self, request: str, count: int) -> list[Stored]:
        """Return the first `count` events of a request, fewer when there are no more.

        The exact count matters: asked for more, the server walks on to the end of the log. It ends a batch
        early when much is under way, hence the loop.
        """
        found: list[Stored] = []
        while len(found) < count:
            first = found[-1].seq + 1 if found else 1
            body = {"seq": first, "batch": min(count - len(found), _BATCH), "next_by_subj": evt_of(request)}
            encoded = msgspec.json.encode(body)
            part = await self._bus.collect(GET + STREAM, encoded, timeout_s=self._timeout_s)
            if not part:
                break
            found += [_from_direct(message) for message in part]
        return found

    async def follow(self, consumer: str, from_seq: int = 1, *, tail: bool = True) -> AsyncIterator[Stored]:
        reader = _Follower(self._bus, consumer, tail=tail)
        try:
            await reader.open()
            async for stored in reader.events(from_seq):
                yield stored
        finally:
            await reader.close()


def _from_direct(message: Incoming) -> Stored:
    headers = message.headers
    return Stored(int(headers["Nats-Sequence"]), parse_evt(headers["Nats-Subject"]).to, message.data)


# --- following ------------------------------------------------------------------------------------

_PULL = 4000
_PULLS = 3
_PULL_S = 2.0
"""Short: a pull that crosses accounts may outlive its inbox until then, and swallow what others wait for."""
_HEARTBEAT_S = 1.0
_SILENCE_S = 5.0
_AGAIN_S = 0.2
_STARVED_S = 0.05


class _Follower:
    """Reads the whole log through a consumer without acknowledgements, several pulls at a time.

    Such a consumer moves on when it has sent, not when we have received. So each message's consumer
    sequence must follow the one before; when one is missing, as after a broken connection, the consumer
    is reset to the first event not yet yielded, and counts from 1 again.
    """

    def __init__(self, bus: Bus, consumer: str, *, tail: bool) -> None:
        self._bus = bus
        self._consumer = consumer
        self._tail = tail
        self._queue: deque[tuple[Stored, int]] = deque()
        self._wake = asyncio.Event()
        self._requested = 0
        """Messages asked for that have not come."""
        self._to_request = 0
        """Without a tail: messages that are there and not yet asked for."""
        self._delivered = 0
        self._broken = True
        self._resetting = False
        self._reset_to = 0
        self._subscription: Subscription | None = None
        self._stop_hearing = bus.on_back(self._break)

    async def open(self) -> None:
        self._subscription = await self._bus.subscribe(self._bus.new_inbox(), self._on_message)

    async def close(self) -> None:
        """Give up the inbox: with it go the pulls that are under way, which others would starve by."""
        self._stop_hearing()
        if self._subscription is not None:
            await self._subscription.close()

    async def events(self, from_seq: int) -> AsyncIterator[Stored]:
        following = max(1, from_seq)
        last = 0  # without a tail: the last event of the log as it was when the first one came
        while True:
            if self._broken and not await self._reset(following) and not self._tail:
                return
            while self._queue:
                stored, end = self._queue.popleft()
                last = last or end
                if stored.seq > following and not await self._is_next(following, stored.seq):
                    self._broken = True
                    break
                if stored.seq >= following:
                    following = stored.seq + 1
                    yield stored
                if following > last and not self._tail:
                    return
                self._pull()
            if not self._broken:
                await self._arrival()

    async def _reset(self, following: int) -> int:
        """Point the consumer at `following`, for as long as it takes; return how many events are there."""
        self._resetting = True
        again_s = _STARVED_S if following == self._reset_to else 0.0
        self._reset_to = following
        while True:
            self._queue.clear()
            self._delivered = 0
            await asyncio.sleep(again_s)
            try:
                verb = f"CONSUMER.RESET.{STREAM}.{self._consumer}"
                answer = await self._bus.api(verb, {"seq": following})
            except (Unreachable, OutcomeUnknown):
                again_s = _AGAIN_S
            else:
                break
        self._resetting = self._broken = False
        self._requested = 0
        self._to_request = int(answer["num_pending"])
        for _ in range(_PULLS):
            self._pull()
        return int(answer["num_pending"])

    async def _is_next(self, following: int, seq: int) -> bool:
        """Say whether nothing lies between: events at the beginning expire. Else somebody else has reset."""
        body = msgspec.json.encode({"seq": following, "next_by_subj": "mesh.evt.>"})
        try:
            found = await self._bus.request(GET + STREAM, body)
        except (Unreachable, OutcomeUnknown):
            return False
        return not found.status and int(found.headers["Nats-Sequence"]) == seq

    def _pull(self) -> None:
        """Ask for more, unless enough is on its way or lies here; without a tail, for what is there only."""
        if self._requested + len(self._queue) > _PULL * (_PULLS - 1) or self._subscription is None:
            return
        batch = _PULL if self._tail else min(_PULL, self._to_request)
        if not batch or self._broken:
            return
        self._requested += batch
        self._to_request -= batch
        body = {"batch": batch, "expires": int(_PULL_S * NS), "idle_heartbeat": int(_HEARTBEAT_S * NS)}
        subject = f"{NEXT}{STREAM}.{self._consumer}"
        self._bus.send(subject, msgspec.json.encode(body), reply=self._subscription.subject)

    async def _arrival(self) -> None:
        """Wait for a message, or start over when not even heartbeats come."""
        self._wake.clear()
        try:
            async with asyncio.timeout(_SILENCE_S):
                await self._wake.wait()
        except TimeoutError:
            self._break()

    def _on_message(self, message: Incoming) -> None:
        if message.reply:
            self._on_event(message)
        else:
            self._on_status(message)
        self._wake.set()

    def _on_event(self, message: Incoming) -> None:
        tokens = message.reply.split(".")
        delivered = int(tokens[6])
        if delivered == self._delivered + 1 or (delivered == 1 and self._resetting):
            if delivered == 1:
                self._queue.clear()  # of what another reset brought
            self._delivered = delivered
            self._requested -= 1
            stored = Stored(int(tokens[5]), message.subject.split(".", 3)[2], message.data)
            self._queue.append((stored, stored.seq + int(tokens[8])))
        elif not self._resetting:
            self._broken = True

    def _on_status(self, message: Incoming) -> None:
        headers, status = message.headers, message.status
        if status == 100:
            if int(headers.get("Nats-Last-Consumer", 0)) > self._delivered and not self._resetting:
                self._broken = True  # the latest went elsewhere, and no later one shows it
            return
        self._requested -= int(headers.get("Nats-Pending-Messages", 0))
        if status != 408 or not self._tail:
            self._broken = True
        else:
            self._pull()

    def _break(self) -> None:
        self._broken = True
        self._wake.set()
