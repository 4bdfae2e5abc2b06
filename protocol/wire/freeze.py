"""The freeze of the whole mesh, as guards keep it in CONF, and spans of time that count for no clock.

A clock has a begin and an end. What it stood in between moves its end on, each moment once, however many
freezes overlap.
"""

from collections.abc import Iterable
from functools import partial

import msgspec

from protocol.wire.config import read


class Span(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A span of time, both ends in UTC µs."""

    since: int
    until: int


MOST_SPANS = 64
"""How many freezes of the mesh its entry keeps, the newest."""


class FreezeEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `mesh.conf.freeze` holds; no entry is a mesh that goes on."""

    frozen: bool = False
    by: str = ""
    """The person's name."""
    sender: str = ""
    reason: str = ""
    since: int = 0
    """UTC µs since when it is as it is."""
    at: int = 0
    """UTC µs at which the message was stored that it is from."""
    seq: int = 0
    """That message's place in CTL."""
    spans: tuple[Span, ...] = ()
    """When it was frozen before, the newest last. No clock of a request ran then."""


read_freeze = partial(read, type_=FreezeEntry)


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the same time as spans that are in order and apart from each other."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda one: one.since):
        if found and span.since <= found[-1].until:
            found[-1] = Span(since=found[-1].since, until=max(found[-1].until, span.until))
        elif span.until > span.since:
            found.append(span)
    return tuple(found)


def moved_on(begin: int, end: int, spans: Iterable[Span]) -> int:
    """Return when a clock runs out that began at `begin` and would at `end` (UTC µs).

    Args:
        spans: when it stood, in order and apart from each other.
    """
    for span in spans:
        since = max(begin, span.since)
        if since >= end:
            break
        if span.until > since:
            end += span.until - since
    return end
