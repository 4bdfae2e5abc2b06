"""A model's rate limits, shared among processes: who has how much, and who gets what next.

One entry per model stands on the bus. Every process that asks the model changes the entry by compare-and-set,
now and then and never for a single call. All shares together never exceed the model's limits.

A share is max-min fair (water-filling: Bertsekas and Gallager, Data Networks, 6.5.2). With fewer places than
processes, the processes take turns. No verdict rests on any of this.
"""

from collections.abc import Mapping
from typing import NamedTuple

from protocol.wire.config import MOST_PROCESSES, ModelLimits, RateLimitEntry, RatePart, RateShare

LEASE_US = 15_000_000
"""A share that was not renewed for so long is over."""
MINUTE_US = 60_000_000
TURN_US = 6_000_000
"""How long a process keeps its place where there are fewer places than processes."""


class ModelUse(NamedTuple):
    """A process's use of one model now."""

    running: int = 0
    begun: int = 0
    """Requests that began within the last minute."""
    waiting: int = 0


class Renewal(NamedTuple):
    """An entry to write, and what its writer may use then. More than that may still be in use."""

    entry: RateLimitEntry
    concurrency: int
    """0 also where the model has no such limit."""
    per_minute: int


def renew(entry: RateLimitEntry, me: str, now: int, usage: ModelUse, limits: ModelLimits) -> Renewal:
    """Return the entry in which the process `me` has its share for another lease.

    A process gets its fair part, and half of what nobody wants. It keeps what it uses beyond that.

    Args:
        now: UTC µs.
        usage: never more than the process has, unless its lease ended meanwhile.
    """
    others = _others(entry, me, now)
    if len(others) >= MOST_PROCESSES:
        return Renewal(RateLimitEntry(shares=others), 0, 0)
    live = {name: share.concurrency for name, share in others.items() if share.until > now}
    concurrency, may_run = _part(
        limits.concurrency, live, me, now, usage.running, usage.running + usage.waiting
    )
    recent = {
        name: share.per_minute if share.until > now else RatePart(has=share.per_minute.has)
        for name, share in others.items()
    }
    per_minute, may_begin = _part(
        limits.per_minute, recent, me, now, usage.begun, usage.begun + usage.waiting
    )
    share = RateShare(concurrency=concurrency, per_minute=per_minute, until=now + LEASE_US)
    return Renewal(RateLimitEntry(shares={**others, me: share}), may_run, may_begin)


def release(entry: RateLimitEntry, me: str, now: int, begun: int) -> RateLimitEntry:
    """Return the entry in which the process `me` gave its share back.

    Args:
        now: UTC µs.
        begun: requests that it began within the last minute; they count for another minute.
    """
    shares = _others(entry, me, now)
    if me in entry.shares and (has := min(begun, entry.shares[me].per_minute.has)):
        shares[me] = RateShare(per_minute=RatePart(has=has), until=now)
    return RateLimitEntry(shares=shares)


def _others(entry: RateLimitEntry, me: str, now: int) -> dict[str, RateShare]:
    """Return the others' shares without those that are over."""
    return {
        name: share
        for name, share in entry.shares.items()
        if name != me and share.until + (MINUTE_US if share.per_minute.has else 0) > now
    }


def _part(
    limit: int | None, others: Mapping[str, RatePart], me: str, now: int, in_use: int, wants: int
) -> tuple[RatePart, int]:
    """Return this process's part of a limit, and how much of it the process may use."""
    if limit is None:
        return RatePart(), 0
    free = max(0, limit - sum(part.has for part in others.values()))
    wanted = {name: min(part.wants, limit) for name, part in others.items() if part.wants}
    wanted[me] = min(max(1, wants), limit)  # one to begin at once with
    fair = _fair(limit, wanted, me, now)
    unwanted = limit - sum(wanted.values())
    may_use = min(fair + max(0, min(unwanted, free - fair)) // 2, free)
    return RatePart(has=min(max(may_use, in_use), free), wants=wanted[me]), may_use


def _fair(limit: int, wanted: Mapping[str, int], me: str, now: int) -> int:
    """Return the max-min fair part of `me`: nobody gets more than they want, or than the common level.

    What remains below the next level goes to one process each: in turns, where the others have nothing.
    """
    left = limit
    for above, wants in zip(range(len(wanted), 0, -1), sorted(wanted.values()), strict=True):
        level, rest = divmod(left, above)
        if wants > level:
            break
        left -= wants
    else:
        return wanted[me]
    fuller = sorted(name for name, wants in wanted.items() if wants > level)
    if me not in fuller:
        return wanted[me]
    turn = 0 if level else now // TURN_US
    place = (fuller.index(me) + turn) % len(fuller)
    return level + (place < rest)
