"""Statistics of requests, from their index: edges, depths, refusals, ping-pong, times, costs and days.

Each is a sum over rows that the index keeps for each request, so no part of a log of a million events is read
again. Times of an edge come from buckets that are 19% apart.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from mesh.ops.hops import OPEN, time_in
from mesh.ops.index import RequestIndex, SubsetReader
from mesh.ops.where import Filter

QUIET_S: Final = 900
"""An open request in which nothing happened for this long (s) counts as quiet."""
_DAY_US: Final = 86_400_000_000


class EdgeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Hops from one name to another. Times are in seconds, of hops that have ended."""

    giver: str
    taker: str
    passed: int
    refused: int
    open: int = 0
    """Hops that have not ended."""
    mean_s: float | None = None
    """Mean duration of a hop, including its time in the queue; None if none has ended."""
    p50_s: float | None = None
    p95_s: float | None = None
    waited_s: float | None = None
    """How much of the mean a hop waited: for a reply, another try, its tasks, or a person."""
    queued_s: float | None = None
    """Mean time in the queue, of the hops whose taker said how long it worked; None without any."""
    nano_dollars: int = 0
    """Total cost that the takers reported."""


class RuleStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The refusals of one rule."""

    rule: str
    refused: int
    requests: int
    """Number of requests with such a refusal."""


class DayStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that were opened on one day (UTC)."""

    day: str
    """`2026-11-27`."""
    requests: int
    statuses: Mapping[str, int]
    events: int
    hops: int
    refusals: int
    nano_dollars: int


class StuckStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Open requests by who has to act."""

    holder: str
    open: int
    quiet: int
    """Those in which nothing happened for 15 minutes."""
    since: int
    """Newest event (UTC µs) of the request that has been quiet for longest."""


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """All counts of some requests."""

    requests: int
    events: int
    statuses: Mapping[str, int]
    hops: int
    refusals: int
    ping_pong: int
    """Hops by which work went to and fro again: a → b, b → a, and then a → b."""
    ping_pong_requests: int
    nano_dollars: int
    depths: Mapping[int, int]
    """Number of requests by their greatest depth."""
    edges: tuple[EdgeStatistics, ...]
    """Edges with the most hops first."""
    rules: tuple[RuleStatistics, ...]
    days: tuple[DayStatistics, ...]
    """Oldest first; days without a request are left out."""
    stuck: tuple[StuckStatistics, ...]
    """Holders with the most quiet requests first."""
    human: int
    """Open requests on which people must act."""
    frozen: int

    @property
    def ping_pong_share(self) -> float:
        """Share of the hops that went to and fro again."""
        return self.ping_pong / self.hops if self.hops else 0.0


def statistics(index: RequestIndex, wanted: Filter, *, now: int | None = None) -> Statistics:
    """Return the statistics of the wanted requests.

    Args:
        now: the present (UTC µs); by default from the clock.
    """
    with index.reading_of(wanted) as subset:
        days, depths, (ping_pong, ping_pong_requests) = _days(subset)
        refusals = subset.read(
            "SELECT rule, giver, taker, sum(refused) FROM refusals WHERE {wanted} GROUP BY rule, giver, taker"
        )
        edges, rules = _edges(subset, refusals), _rules(subset, refusals)
        stuck = _stuck(subset, time.time_ns() // 1_000 if now is None else now)
        human, frozen = _tagged(subset, "status:human"), _tagged(subset, "status:frozen")
    statuses = Counter[str]()
    for day in days:
        statuses.update(day.statuses)
    return Statistics(
        requests=sum(day.requests for day in days),
        events=sum(day.events for day in days),
        statuses=dict(statuses.most_common()),
        hops=sum(day.hops for day in days),
        refusals=sum(day.refusals for day in days),
        ping_pong=ping_pong,
        ping_pong_requests=ping_pong_requests,
        nano_dollars=sum(day.nano_dollars for day in days),
        depths=dict(sorted(depths.items())),
        edges=edges,
        rules=rules,
        days=tuple(days),
        stuck=stuck,
        human=human,
        frozen=frozen,
    )


_Row = tuple[Any, ...]


def _days(subset: SubsetReader) -> tuple[list[DayStatistics], Counter[int], tuple[int, int]]:
    """Return days, the number of requests by depth, and how often and in how many work went to and fro."""
    rows = subset.read(
        f"SELECT opened / {_DAY_US}, status, depth, count(*), sum(events), sum(hops), sum(refusals),"
        " total(nano_dollars), sum(ping_pong), sum(ping_pong > 0)"
        " FROM requests INDEXED BY requests_opened WHERE opened >= 0 AND {wanted} GROUP BY 1, 2, 3"
    )
    depths, found = Counter[int](), dict[int, list[_Row]]()
    for row in rows:
        found.setdefault(row[0], []).append(row)
        depths[row[2]] += row[3]
    days = [_day(day, found[day]) for day in sorted(found)]
    return days, depths, (sum(row[8] for row in rows), sum(row[9] for row in rows))


def _day(day: int, rows: Iterable[_Row]) -> DayStatistics:
    statuses, sums = Counter[str](), [0] * 5
    for _, status, _, requests, *counts, _, _ in rows:
        statuses[status] += requests
        sums = [int(one + other) for one, other in zip(sums, (requests, *counts), strict=True)]
    requests, events, hops, refusals, nano_dollars = sums
    return DayStatistics(
        day=_date(day),
        requests=requests,
        statuses=dict(statuses.most_common()),
        events=events,
        hops=hops,
        refusals=refusals,
        nano_dollars=nano_dollars,
    )


def _date(day: int) -> str:
    """Return a day since 1970 as ISO-8601; `?` for a day outside the calendar."""
    try:
        return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return "?"


# --- edges ----------------------------------------------------------------------------------------


def _edges(subset: SubsetReader, refusals: Iterable[_Row]) -> tuple[EdgeStatistics, ...]:
    refused = Counter[tuple[str, str]]()
    for _, giver, taker, count in refusals:
        if taker:
            refused[giver, taker] += count
    found: dict[tuple[str, str], list[_Row]] = {edge: [] for edge in refused}
    for giver, taker, *sums in subset.read(
        "SELECT giver, taker, bucket, sum(passed), total(us), total(waited_us), total(nano_dollars),"
        " sum(timed), total(queued_us)"
        " FROM hops WHERE {wanted} GROUP BY giver, taker, bucket"
    ):
        found.setdefault((giver, taker), []).append(tuple(sums))
    edges = (_edge(edge, buckets, refused[edge]) for edge, buckets in found.items())
    return tuple(sorted(edges, key=lambda each: (-each.passed, -each.refused, each.giver, each.taker)))


def _edge(edge: tuple[str, str], buckets: Sequence[_Row], refused: int) -> EdgeStatistics:
    over = [(bucket, passed) for bucket, passed, *_ in buckets if bucket != OPEN]
    count = sum(passed for _, passed in over)
    timed = sum(each[5] for each in buckets)
    mean, waited = (sum(each[at] for each in buckets) / count / 1e6 if count else None for at in (2, 3))
    return EdgeStatistics(
        giver=edge[0],
        taker=edge[1],
        passed=sum(passed for _, passed, *_ in buckets),
        refused=refused,
        open=sum(passed for bucket, passed, *_ in buckets if bucket == OPEN),
        mean_s=mean,
        p50_s=_quantile(over, count, 0.5),
        p95_s=_quantile(over, count, 0.95),
        waited_s=waited,
        queued_s=sum(each[6] for each in buckets) / timed / 1e6 if timed else None,
        nano_dollars=int(sum(each[4] for each in buckets)),
    )


def _quantile(over: Sequence[tuple[int, int]], count: int, share: float) -> float | None:
    """Return the time (s) that this share of hops did not exceed; None without any."""
    left = count * share
    for bucket, passed in over:
        left -= passed
        if left <= 0:
            return time_in(bucket) / 1e6
    return None


# --- rules, and what is stuck ---------------------------------------------------------------------


def _rules(subset: SubsetReader, refusals: Iterable[_Row]) -> tuple[RuleStatistics, ...]:
    refused = Counter[str]()
    for rule, _, _, count in refusals:
        refused[rule] += count
    requests = dict(subset.read("SELECT rule, count(DISTINCT id) FROM refusals WHERE {wanted} GROUP BY rule"))
    return tuple(
        RuleStatistics(rule=rule, refused=count, requests=requests.get(rule, 0))
        for rule, count in refused.most_common()
    )


def _stuck(subset: SubsetReader, now: int) -> tuple[StuckStatistics, ...]:
    rows = subset.read(
        "SELECT r.holder, count(*), sum(r.at < ?), min(r.at)"
        " FROM tags t CROSS JOIN requests r ON r.id = t.id WHERE t.tag = ? AND {wanted} GROUP BY r.holder",
        now - QUIET_S * 1_000_000,
        "status:open",
        key="t.id",
    )
    found = (
        StuckStatistics(holder=holder or "(nobody)", open=count, quiet=quiet, since=since)
        for holder, count, quiet, since in rows
    )
    return tuple(sorted(found, key=lambda each: (-each.quiet, each.since)))


def _tagged(subset: SubsetReader, tag: str) -> int:
    return int(subset.read("SELECT count(*) FROM tags WHERE tag = ? AND {wanted}", tag)[0][0])
