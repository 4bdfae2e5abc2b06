"""The requests in which something happened last: found by reading the log backwards, a piece at a time.

What it costs depends on how far back one has to look, not on how long the log is.
"""

import msgspec

from mesh.bus.connection import Bus
from mesh.cli.reading import ENDS, Kept, batch, bounds, glance
from protocol.ids import HUMAN, NOBODY

_PIECE = 2000
_MOST = 200_000
"""Events that are looked through at most."""

STATUSES = ("open", "human", "completed", "refused", "failed", "expired", "cancelled")
"""`human` is an open one that people have to do something about."""


class Recent(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as its last event shows it."""

    request: str
    status: str
    holder: str
    """Who has to act; empty when nobody has."""
    type: str
    """Of the last event."""
    at: int
    """UTC µs of the last event."""
    events: int


async def recent(bus: Bus, *, limit: int, status: str | None = None) -> tuple[list[Recent], bool]:
    """Return up to `limit` requests, the latest first, and whether there was no need to look further."""
    first, last = await bounds(bus, "LOG")
    seen_before: set[str] = set()
    kept: list[Recent] = []
    end, oldest = last, max(first, last - _MOST)
    while end >= oldest and len(kept) < limit:
        start = max(oldest, end - _PIECE + 1)
        for each in reversed(await batch(bus, "LOG", "mesh.evt.>", start, end - start + 1)):
            if each.seq > end:
                continue  # appended since we looked
            seen = _seen(each)
            if seen is not None and seen.request not in seen_before:
                seen_before.add(seen.request)
                if status in (None, seen.status) or (status == "open" and seen.status == "human"):
                    kept.append(seen)
        end = start - 1
    return kept[:limit], len(kept) >= limit or oldest == first


def _seen(kept: Kept) -> Recent | None:
    try:
        event = glance(kept.data)
    except msgspec.MsgspecError:
        return None
    ended = event.type in ENDS
    status = event.type.partition(".")[2] if ended else "human" if event.to == HUMAN else "open"
    holder = "" if ended or event.to == NOBODY else event.to
    return Recent(
        request=event.request, status=status, holder=holder, type=event.type, at=event.at, events=event.n + 1
    )
