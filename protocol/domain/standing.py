"""Spans of time that count for no clock: the request was frozen, or the whole mesh was.

A clock has a begin and an end. What it stood in between moves its end on, each moment once, however many
freezes overlap.
"""

from collections.abc import Iterable

from protocol.wire.freeze import Span


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
