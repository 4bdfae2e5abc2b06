"""Requests in the streams: read, export and check them; make room among their journals.

Everything is read with a viewer's permissions, by direct gets. They leave nothing at the server and move no
consumer, so any number of people can read at once under one name. The stored bytes are returned.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog, check_form
from mesh.bus.provision import stored_journals
from mesh.bus.reader import batch, bounds, every, first_since, stream_info
from mesh.errors import (
    ApiCode,
    ApiError,
    Denied,
    Impossible,
    LogUnreadable,
    Malformed,
    NoResponders,
    NotFound,
    OldForm,
    OutcomeUnknown,
    ProtocolError,
    UsageWrong,
)
from mesh.ops.roster import mesh_freeze
from mesh.service.printable import as_program_reads
from protocol.domain.hash_chain import Break, Chain, link_of, redacted
from protocol.domain.ledger import Ledger
from protocol.domain.submit import AHEAD_S
from protocol.views.timeline import Timeline
from protocol.wire import codec, events, subjects
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.ids import NOBODY, RequestId, is_request_id, submitted_ms

T = TypeVar("T")
ENDS = frozenset(type_of(kind) for kind in events.Ended.__args__)
"""Types of events that end a request."""
LEAST_S = 3600.0
"""The least time for which steps stay after their request has ended (s): nothing hangs for so long."""
_NOT_TRIMMED = ("*", ">", NOBODY)
"""No requests: tokens whose purge would remove every journal, and the one of a time that a restore lost."""
_API_S = 60.0
_AT_ONCE = 16
"""Requests that are read concurrently."""
_PATIENCE_S = 30.0
"""How long a read of a busy bus is retried (s)."""
_PAUSE_S = 0.1


class EventHeader(msgspec.Struct, frozen=True):
    """The fields that every version of an event has."""

    request: str
    n: int
    at: int
    type: str
    to: str = ""

    @property
    def is_end(self) -> bool:
        return self.type in ENDS


def header_of(body: bytes) -> EventHeader | None:
    """Return an event's envelope; None if the bytes are not an event of any version."""
    return codec.readable(body, EventHeader)


def has_ended(body: bytes) -> bool:
    """Return True if this is a request's last event."""
    event = header_of(body)
    return event is not None and event.is_end


def checked_id(request: str) -> RequestId:
    """Return a request's id. Raises UsageWrong for any other text."""
    if not is_request_id(request):
        raise UsageWrong(f"not a request's id: {request!r}; they look like `app_01JAZ…`")
    return RequestId(request)


def decoded(bodies: Iterable[bytes]) -> list[AnyEvent]:
    """Return one request's events, from the first on. Raises UnknownEvent, and Malformed.

    Events that do not follow from each other are malformed, too: no guard writes them. Folding the returned
    events cannot fail.
    """
    happened = [codec.decode_event(body) for body in bodies]
    ledger = Ledger()
    for event in happened:
        try:
            ledger.apply(event)
        except (LookupError, TypeError, AttributeError, ValueError) as impossible:
            raise Malformed(
                f"{event.request}: event {event.n} ({type_of(event)}) does not follow from those before it; "
                f"look with mesh log verify {event.request}"
            ) from impossible
    return happened


# --- an id from its beginning, as tables show it ---------------------------------------------------
# An id begins with its client's name and the millisecond in which it was made. So a prefix names a span of
# time, and only that part of the log is read. No index of ids is kept.

_PREFIX = re.compile(r"[a-z0-9-]{1,24}_[0-7][0-9A-HJKMNP-TV-Z]{0,24}")
_TIME_CHARS = 10
"""The first characters of a ULID, which are its milliseconds (https://github.com/ulid/spec)."""
_LATE_S = 3600
"""How long a submit may have waited in its queue (s). Once an id is found, the search ends there."""
_MOST_LOOKED_AT = 200_000
"""The largest number of events that are searched."""
_SHOWN = 5
"""Candidates that an error names."""


def is_prefix(text: str) -> bool:
    """Return True if `text` may begin a request's id: a client's name, `_`, a part of a ULID."""
    return _PREFIX.fullmatch(text) is not None


async def whole_id(bus: Bus, prefix: str) -> RequestId:
    """Return the only id in the log that begins with `prefix`.

    Raises NotFound if there is none, UsageWrong if there are several (the text names them) or if the
    credentials do not permit the search.
    """
    client, _, given = prefix.rpartition("_")
    first_ms, last_ms = (submitted_ms(f"{client}_{given[:_TIME_CHARS].ljust(26, pad)}") for pad in "0Z")
    found: dict[str, None] = {}
    try:
        from_seq = await first_after(bus, first_ms / 1000 - AHEAD_S)
        looked = 0
        while from_seq and looked < _MOST_LOOKED_AT and len(found) <= _SHOWN:
            part = await batch(bus, "LOG", None, from_seq)
            events = [event for each in part if (event := header_of(each.data)) is not None]
            found |= dict.fromkeys(each.request for each in events if each.request.startswith(prefix))
            if not part or (found and part[-1].at > (last_ms / 1000 + _LATE_S) * 1e6):
                break
            from_seq, looked = part[-1].seq + 1, looked + len(part)
    except Denied:
        raise UsageWrong(f"the key of {bus.name} cannot look for {prefix!r}: give the whole id") from None
    if not found:
        raise NotFound(f"no request in the log begins with {prefix!r}")
    if len(found) > 1:
        shown = ", ".join([*list(found)[:_SHOWN], *(["…"] if len(found) > _SHOWN else [])])
        raise UsageWrong(f"{prefix!r} is the beginning of several ids: {shown}")
    return RequestId(next(iter(found)))


async def first_after(bus: Bus, at_s: float) -> int:
    """Return the sequence of the first event stored at a time or later; 0 if there is none."""
    if at_s > time.time():
        return 0
    since = datetime.fromtimestamp(max(at_s, 0), UTC).isoformat().replace("+00:00", "Z")
    first = await first_since(bus, "LOG", subjects.EVENTS, since)
    return 0 if first is None else first.seq


# --- one request, and many ------------------------------------------------------------------------


async def patiently(bus: Bus, attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a read, retried while a busy bus does not answer.

    Raises BusError, at once if the bus is away, and NotFound at once if it was never set up.
    """
    until, looked = time.monotonic() + _PATIENCE_S, False
    while True:
        try:
            try:
                return await attempt()
            except NoResponders:  # for a moment, while the log has no leader; for ever, if there is none
                if not looked:
                    looked = True
                    with contextlib.suppress(Denied):
                        await stream_info(bus, "LOG")
                raise
        except OutcomeUnknown:
            if not bus.connected or time.monotonic() >= until:
                raise
            await asyncio.sleep(_PAUSE_S)
        except ApiError as error:
            if error.err_code != ApiCode.STREAM_NOT_FOUND:
                raise
            raise NotFound("this bus has no mesh; run `mesh setup`") from None


async def request_bodies(bus: Bus, request: str) -> list[bytes]:
    """Return the stored events of a request, in order. Raises NotFound, LogUnreadable."""
    name = checked_id(request)
    stored = await patiently(bus, lambda: JetStreamLog(bus).read(name))
    if not stored:
        raise NotFound(await not_there(bus, request))
    return [each.data for each in stored]


async def whole_request(bus: Bus, request: str) -> list[bytes]:
    """Return all of a request's events from the first on. Also raises Impossible if one is missing."""
    try:
        bodies = await request_bodies(bus, request)
    except LogUnreadable:
        check_numbers(request, [kept.data async for kept in every(bus, "LOG", subjects.evt_of(request))])
        raise
    check_numbers(request, bodies)
    return bodies


def check_numbers(source: str, bodies: Iterable[bytes], first: int = 0) -> None:
    """Raise Impossible unless events are numbered from `first` on without a gap. Skips undecodable ones."""
    for expected, body in enumerate(bodies, first):
        event = header_of(body)
        if event is None:
            return  # decoding it reports more
        if event.n != expected:
            what = f"event {expected} is missing" if event.n > expected else f"event {event.n} is there twice"
            raise Impossible(
                f"{source}: {what}, so that it cannot be told; look with mesh log verify {source}"
            )


async def read_each(
    bus: Bus, requests: Iterable[str], *, skip_ended: bool = False
) -> dict[str, list[AnyEvent] | None]:
    """Return the events of each request; None if it cannot be read. Raises OldForm, BusError.

    Args:
        skip_ended: True to return no event of a request that has ended, or is not in the log.
    """
    log, room = JetStreamLog(bus, leader=False), asyncio.Semaphore(_AT_ONCE)

    async def read(request: str) -> list[AnyEvent] | None:
        async with room:
            try:
                if skip_ended:
                    head = await patiently(bus, lambda: log.head(request))
                    if head is None or has_ended(head.data):
                        return []
                found = await patiently(bus, lambda: log.read(request))
                return decoded(stored.data for stored in found)
            except OldForm:
                raise
            except (LogUnreadable, ProtocolError):
                return None

    names = tuple(dict.fromkeys(requests))
    return dict(zip(names, await asyncio.gather(*map(read, names)), strict=True))


async def not_there(bus: Bus, request: str) -> str:
    """Return a sentence that a request is not in the log, and why that may be. Raises BusError."""
    freeze = await mesh_freeze(bus)
    waits = f"; it may wait in its queue: the whole mesh is frozen {freeze.in_words}" if freeze.frozen else ""
    return f"there is no request {request} in the log{waits}"


def documented(shown: Timeline, bodies: Sequence[bytes]) -> dict[str, Any]:
    """Return the documented form of a request: its timeline, and its stored events unchanged.

    Times of the timeline are ISO-8601; stored events have theirs as UTC µs.
    """
    fields: dict[str, Any] = as_program_reads(shown)
    return fields | {"events": [msgspec.Raw(body) for body in bodies]}


# --- exports --------------------------------------------------------------------------------------


async def stored_bodies(bus: Bus, requests: Sequence[str] = ()) -> AsyncIterator[bytes]:
    """Yield the stored events of requests; without a name those of all, in the log's order.

    Raises OldForm, NotFound, BusError.
    """
    await check_form(bus)
    for request in requests:
        for body in await request_bodies(bus, request):
            yield body
    if not requests and (await bounds(bus, "LOG"))[1]:
        async for stored in JetStreamLog(bus).follow(tail=False):
            yield stored.data


def redacted_if(is_redacted: Callable[[int], bool], body: bytes) -> bytes:
    """Return an event as it is exported: only its envelope if it is redacted. Raises Malformed."""
    return redacted(body) if is_redacted(link_of(body).n) else body


# --- hash chains ----------------------------------------------------------------------------------

_NOTHING_WATCHED: Mapping[str, int] = MappingProxyType({})


class Chains:
    """Checks hash chains as events arrive: requests in any order, each one's events in order.

    Args:
        whole: chains that were checked before.
        watched: for these requests, the number of an event whose digest is kept.
    """

    def __init__(
        self, whole: dict[str, Chain] | None = None, watched: Mapping[str, int] = _NOTHING_WATCHED
    ) -> None:
        self._watched = watched
        self.digests: dict[str, str] = {}
        """Digests of the watched events, by request."""
        self._chains: dict[str, Chain] = whole or {}
        """By request."""
        self.events = sum(chain.n for chain in self._chains.values())
        self.unreadable = 0
        """How many bodies are not an event."""

    @property
    def requests(self) -> int:
        return len(self._chains)

    def length(self, request: str) -> int:
        """Return the number of a request's events."""
        chain = self._chains.get(request)
        return 0 if chain is None else chain.n

    @property
    def breaks(self) -> list[tuple[str, Break]]:
        """Return where chains do not hold, with the request's id."""
        unreadable = [("?", Break(-1, "cannot be read"))] * self.unreadable
        return unreadable + [(name, each) for name, chain in self._chains.items() for each in chain.breaks]

    @property
    def redacted(self) -> list[tuple[str, int]]:
        """Return the redacted events: the request's id and the event's number."""
        return [(name, n) for name, chain in self._chains.items() for n in chain.redacted]

    def take(self, body: bytes) -> None:
        """Check the next event. Raises OldForm."""
        self.events += 1
        try:
            link = link_of(body)
        except Malformed:
            self.unreadable += 1
            return
        chain = self._chains.get(link.request)
        if chain is None:
            chain = self._chains[link.request] = Chain()
        chain.take(body, link)
        if self._watched and self._watched.get(link.request) == link.n:
            self.digests[link.request] = chain.prev

    def add(self, others: "Chains") -> None:
        """Add the results of other requests."""
        self.events += others.events
        self.unreadable += others.unreadable
        self._chains |= others._chains


def chains_of(bodies: Iterable[bytes], watched: Mapping[str, int] = _NOTHING_WATCHED) -> Chains:
    """Check the hash chains of these events. Raises OldForm."""
    chains = Chains(watched=watched)
    for body in bodies:
        chains.take(body)
    return chains


# --- room among the journals ----------------------------------------------------------------------


class Trimmed(NamedTuple):
    """One request's steps."""

    request: str
    steps: int


async def trim_steps(bus: Bus, *, older_than_s: float, dry_run: bool = False) -> AsyncIterator[Trimmed]:
    """Remove the steps of ended requests from the journals; yield what was removed (with `dry_run`, would
    be).

    Steps of requests that the log does not hold, no longer or never, are removed, too. The events of a
    request stay, and so do the marks that end its turns. Only requests that ended a while ago are trimmed: a
    process that has hung since before the end would find no step of its own turn.

    Args:
        bus: the admin's.
        older_than_s: how long ago a request must have ended (s); at least `LEAST_S`.

    Raises BusError.
    """
    before_ms = int((time.time() - max(older_than_s, LEAST_S)) * 1000)
    log = JetStreamLog(bus)
    found: dict[str, dict[str, int]] = {}
    """By request: how many steps are in each stream of journals."""
    for stream in await stored_journals(bus):
        async for subject, count in _subjects_in(bus, stream):
            steps = found.setdefault(subject.split(".")[3], {})
            steps[stream] = steps.get(stream, 0) + count
    for request, steps in found.items():
        if request in _NOT_TRIMMED or not await _is_over(log, request, before_ms):
            continue
        if not dry_run:
            asked = {"filter": f"mesh.step.*.{request}.*.*"}  # as it is stored, since agents write any token
            purged = [await bus.api(f"STREAM.PURGE.{each}", asked, timeout_s=_API_S) for each in steps]
            yield Trimmed(request, sum(int(each["purged"]) for each in purged))
        else:
            yield Trimmed(request, sum(steps.values()))


async def _subjects_in(bus: Bus, stream: str) -> AsyncIterator[tuple[str, int]]:
    """Yield each subject of a stream of journals, and how many messages it has."""
    offset, total = 0, 1
    while offset < total:
        asked = {"subjects_filter": subjects.STEPS, "offset": offset}
        page: dict[str, Any] = await bus.api(f"STREAM.INFO.{stream}", asked, timeout_s=_API_S)
        found: dict[str, int] = page["state"].get("subjects") or {}
        for each in found.items():
            yield each
        offset, total = offset + len(found), int(page.get("total", 0)) if found else 0


async def _is_over(log: JetStreamLog, request: str, before_ms: int) -> bool:
    """Return True if a request ended before a time, or if it is in no log and can no longer begin."""
    if not is_request_id(request):
        return True  # an agent may write steps for any id
    head = await log.head(request)
    if head is None:
        return not before_ms < submitted_ms(request) <= (time.time() + AHEAD_S) * 1000
    event = header_of(head.data)
    return event is not None and event.is_end and event.at // 1000 < before_ms


async def bytes_in_journals(bus: Bus) -> int:
    """Return the size of all journals in bytes. Raises BusError."""
    infos = [await bus.api(f"STREAM.INFO.{stream}") for stream in await stored_journals(bus)]
    return sum(int(info["state"]["bytes"]) for info in infos)
