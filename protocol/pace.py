"""How processes share what a model may be asked: who has how much of it, and who gets what next.

One entry for each model stands on the bus, and every process that asks it changes the entry by
compare-and-set, now and then and never for a single call. The entry is the whole truth: what all of them have
together never exceeds the model's limits, and what nobody has may be taken.

Shares move as in max-min fairness (water-filling: Bertsekas and Gallager, Data Networks, 6.5.2), and with
fewer places than processes each gets its turn: who has waited longest comes first, who has had a place for
longest goes first. Nothing is judged by any of this.
"""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec
from msgspec.structs import replace

from protocol.fleet import MOST_AT_ONCE, MOST_PER_MINUTE, ModelLimits

LEASE_US = 15_000_000
"""A process that did not renew its share for so long has none."""
MINUTE_US = 60_000_000
MOST_PROCESSES = 256
"""Of one model; an entry with so many is about 50 KiB."""
_MOST = max(MOST_AT_ONCE, MOST_PER_MINUTE)
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
_Micros = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Part(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What one process has of one limit."""

    has: _Count = 0
    """Nobody else may use this much."""
    wants: _Count = 0
    """How much it could use now."""
    since: _Micros = 0
    """UTC µs since when it has some, or none."""


class Share(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What one process has of one model."""

    permits: Part = Part()
    """Requests under way at once."""
    begins: Part = Part()
    """Requests that begin within a minute."""
    until: _Micros
    """UTC µs. After it the permits are free; a minute later, so are the begins: some may have begun."""


class PaceEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who has what of one model, by process."""

    shares: Annotated[Mapping[str, Share], msgspec.Meta(max_length=MOST_PROCESSES)] = {}


class Use(NamedTuple):
    """What a process does with a model at the moment."""

    running: int = 0
    begun: int = 0
    """Requests that began within the last minute."""
    waiting: int = 0


class Granted(NamedTuple):
    """What a process may use, and the entry that says so. It may have more in use still than that."""

    entry: PaceEntry
    permits: int | None
    """None for no limit."""
    begins: int | None
    """Within a minute; None for no limit."""


def renewed(entry: PaceEntry, me: str, now: int, use: Use, limits: ModelLimits) -> Granted:
    """Return the entry in which `me` has its share for another lease.

    What nobody has is taken: all that is wanted, and half of the rest. As long as others want more than they
    have, it is this process's fair part and no more; what is in use beyond that is kept until it is over.

    Args:
        now: UTC µs.
        use: never more than `me` has, unless its lease has ended meanwhile.
    """
    live = {name: share for name, share in entry.shares.items() if name != me and not _is_over(share, now)}
    own = entry.shares.get(me, Share(until=0))
    if len(live) >= MOST_PROCESSES:
        return Granted(PaceEntry(shares=live), 0, 0)
    permits, may_run = _part(
        limits.concurrency,
        {name: share.permits if share.until > now else Part() for name, share in live.items()},
        own.permits if own.until > now else replace(own.permits, has=0),
        Part(has=use.running, wants=use.running + use.waiting),
        now,
    )
    begins, may_begin = _part(
        limits.per_minute,
        {
            name: share.begins if share.until > now else replace(share.begins, wants=0)
            for name, share in live.items()
        },
        own.begins,
        Part(has=use.begun, wants=use.begun + use.waiting),
        now,
    )
    share = Share(permits=permits, begins=begins, until=now + LEASE_US)
    return Granted(PaceEntry(shares={**live, me: share}), may_run, may_begin)


def released(entry: PaceEntry, me: str, now: int, use: Use) -> PaceEntry:
    """Return the entry in which `me` has given back what it has; what it began counts for a minute."""
    live = {name: share for name, share in entry.shares.items() if name != me and not _is_over(share, now)}
    had = entry.shares[me].begins if me in entry.shares else Part()
    if begun := min(had.has, use.begun):
        live[me] = Share(begins=replace(had, has=begun, wants=0), until=now)
    return PaceEntry(shares=live)


def _is_over(share: Share, now: int) -> bool:
    return share.until + (MINUTE_US if share.begins.has else 0) <= now


def _part(
    limit: int | None, others: Mapping[str, Part], had: Part, using: Part, now: int
) -> tuple[Part, int | None]:
    """Return this process's part of a limit, and how much of it may be used.

    Args:
        others: without what has lapsed.
        using: what is in use (`has`), and what could be (`wants`).
    """
    if limit is None:
        return Part(), None
    free = max(0, limit - sum(part.has for part in others.values()))
    wants = min(using.wants, limit)
    if any(part.wants > part.has for part in others.values()):
        goal = _fair(limit, others, replace(had, wants=wants))
    else:
        goal = wants + max(0, free - wants + 1) // 2
    may_use = min(goal, free)
    has = min(max(may_use, using.has), free)
    since = had.since if had.since and (had.has > 0) == (has > 0) else now
    return Part(has=has, wants=wants, since=since), may_use


def _fair(limit: int, others: Mapping[str, Part], own: Part) -> int:
    """Return this process's max-min fair part of a limit.

    Where there is one for each, everybody keeps one, to begin at once with.
    """
    parts = [own, *others.values()]
    claiming = [part for part in parts if part.wants or part.has]
    least = 1 if limit >= len(claiming) else 0
    claims = sorted(
        ((max(part.wants, least), part, part is own) for part in claiming), key=lambda claim: claim[0]
    )
    level, left, count = 0, limit, len(claims)
    for number, (wants, _, _) in enumerate(claims):
        step = min(wants - level, left // (count - number))
        level, left = level + step, left - step * (count - number)
        if level < wants:
            break
    fuller = [(part, is_own) for wants, part, is_own in claims if wants > level]
    first = sorted(fuller, key=lambda claim: _turn(claim[0]))[:left]
    wanted = max(own.wants, least)
    return min(wanted, level) + any(is_own for _, is_own in first)


def _turn(part: Part) -> tuple[bool, int]:
    """Sort who comes first: of those with nothing who waited longest, of the others who came last."""
    return (True, -part.since) if part.has else (False, part.since)
