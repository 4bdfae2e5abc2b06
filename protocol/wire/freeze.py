"""The freeze of the whole mesh, as guards store it in CONF, and the time that it adds to clocks.

A clock runs from its start to its end. Time during which it was stopped postpones the end. Overlapping
freezes count once.
"""

from collections.abc import Iterable
from functools import partial

import msgspec

from protocol.wire.documents import read


class Span(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A span of time, both ends in UTC µs."""

    since: int
    until: int


MOST_SPANS = 64
"""How many earlier freezes an entry keeps; the oldest are dropped."""


class FreezeEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document at `mesh.conf.freeze`. Without an entry, the mesh is not frozen."""

    frozen: bool = False
    by: str = ""
    """The person's name."""
    sender: str = ""
    reason: str = ""
    since: int = 0
    """UTC µs at which the current state began."""
    at: int = 0
    """UTC µs at which the control message behind this entry was stored."""
    seq: int = 0
    """That message's sequence in CTL."""
    spans: tuple[Span, ...] = ()
    """Earlier freezes, the newest last. No request's clock ran during them."""


read_freeze = partial(read, type_=FreezeEntry)


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return spans that cover the same time, sorted and disjoint."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda span: span.since):
        if found and span.since <= found[-1].until:
            found[-1] = Span(since=found[-1].since, until=max(found[-1].until, span.until))
        elif span.until > span.since:
            found.append(span)
    return tuple(found)


def postponed(begin: int, end: int, spans: Iterable[Span]) -> int:
    """Return when a clock runs out that started at `begin` and was due at `end` (UTC µs).

    Args:
        spans: when the clock was stopped, sorted and disjoint.
    """
    for span in spans:
        since = max(begin, span.since)
        if since >= end:
            break
        if span.until > since:
            end += span.until - since
    return end
