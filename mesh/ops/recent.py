"""The requests in which something happened last: found by reading the log backwards, a piece at a time.

What it costs depends on how far back one has to look, not on how long the log is. Each request that is
listed is read: its last event alone does not tell who has to act, that it is frozen, or which conversation
it belongs to.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.reader import StoredMessage, bounds, up_to
from mesh.cli.output import when
from mesh.errors import LogError, ProtocolError
from mesh.ops.queue import waiting_in
from mesh.ops.requests import ENDS, decoded, glance
from protocol.ledger import fold
from protocol.views.entries import named
from protocol.views.timeline import timeline
from protocol.wire import events
from protocol.wire.events import AnyEvent
from protocol.wire.ids import HUMAN, NOBODY

_PIECE = 2000
_MOST = 200_000
"""Events that are looked through at most."""
_AT_ONCE = 16
_CHUNK = 32
"""Requests that are read before it is looked whether they are enough."""
_OPEN = ("open", "human", "frozen")

STATUSES = ("open", "human", "frozen", "completed", "refused", "failed", "expired", "cancelled")
"""`human` is an open one that people have to do something about; `frozen` an open one that is frozen."""


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """That a request is frozen."""

    by: str
    since: int
    """UTC µs."""
    reason: str
    sender: str
    """The operator whose credentials they had."""

    @property
    def in_words(self) -> str:
        """Who did it, and since when."""
        return f"by {named(self.by, self.sender)} since {when(self.since)}"


class Recent(msgspec.Struct, frozen=True, kw_only=True):
    """One request: how it stands, and its last event."""

    request: str
    status: str
    holder: str
    """Who has to act; empty when nobody has."""
    type: str
    """Of the last event."""
    at: int
    """UTC µs of the last event."""
    events: int
    frozen: Frozen | None = None
    conversation: str | None = None


async def recent(
    bus: Bus, *, limit: int, status: str | None = None, conversation: str | None = None
) -> tuple[list[Recent], bool]:
    """Return up to `limit` requests, the latest first, and True if there was no need to look further.

    Args:
        status: one of `STATUSES`; None for all.
        conversation: only requests of this conversation; None for all.
    """
    first, last = await bounds(bus, "LOG")
    seen_before: set[str] = set()
    kept: list[Recent] = []
    end, oldest = last, max(first, last - _MOST)
    while end >= oldest and len(kept) < limit:
        start = max(oldest, end - _PIECE + 1)
        piece: list[Recent] = []
        for each in reversed(await up_to(bus, "LOG", None, start, end - start + 1)):
            if each.seq > end:
                continue  # appended since we looked
            seen = _seen(each)
            if seen is not None and seen.request not in seen_before:
                seen_before.add(seen.request)
                if status in (None, seen.status) or (seen.status == "open" and status in _OPEN):
                    piece.append(seen)
        for at in range(0, len(piece), _CHUNK):
            if len(kept) < limit:
                looked = await _looked_into(bus, piece[at : at + _CHUNK])
                kept += [each for each in looked if _is(each, status) and _in(each, conversation)]
        end = start - 1
    return kept[:limit], len(kept) >= limit or oldest == first


def _in(found: Recent, conversation: str | None) -> bool:
    return conversation is None or found.conversation == conversation


def _is(found: Recent, status: str | None) -> bool:
    """Say whether a request is what was asked for."""
    if status == "frozen":
        return found.frozen is not None
    return status in (None, found.status) or (status == "open" and found.status == "human")


def _seen(kept: StoredMessage) -> Recent | None:
    event = glance(kept.data)
    if event is None:
        return None
    ended = event.type in ENDS
    status = event.type.partition(".")[2] if ended else "open"
    holder = "" if ended or event.to == NOBODY else event.to
    return Recent(
        request=event.request, status=status, holder=holder, type=event.type, at=event.at, events=event.n + 1
    )


async def _looked_into(bus: Bus, found: list[Recent]) -> list[Recent]:
    """Return the same with its conversation; an open one also with who has to act, and who froze it."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def look(seen: Recent) -> Recent:
        async with room:
            try:
                log = JetStreamLog(bus, leader=False)
                happened = decoded(stored.body for stored in await log.read(seen.request))
            except (LogError, ProtocolError):
                return seen  # listed all the same: what is wrong with it shows when it is looked at
        return _as_it_stands(seen, happened)

    return list(await asyncio.gather(*(look(seen) for seen in found)))


def _as_it_stands(seen: Recent, happened: Sequence[AnyEvent]) -> Recent:
    ledger = fold(happened)
    seen = msgspec.structs.replace(seen, conversation=timeline(happened).conversation)
    if seen.status != "open" or not ledger.is_open:
        return seen  # it has ended
    for_people = bool(waiting_in(happened))
    holders = (turn.asked if turn.state == "suspended" else turn.agent for turn in ledger.open.values())
    frozen = None
    if ledger.frozen_at is not None:
        began = next(event for event in reversed(happened) if isinstance(event, events.RequestFrozen))
        frozen = Frozen(by=began.by, sender=began.sender, since=began.at, reason=began.reason)
    return msgspec.structs.replace(
        seen,
        status="human" if for_people else "open",
        holder=HUMAN if for_people else ", ".join(map(str, holders)),
        frozen=frozen,
    )
