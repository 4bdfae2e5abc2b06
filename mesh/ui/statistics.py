"""View: statistics of the requests that are wanted, as plots with their numbers beside them."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.ops.statistics import DayStatistics, statistics
from mesh.ops.where import NAMES, Clause, clauses_in, filter_from, text_of
from mesh.ui.page import Page

MOST_EDGES = 30
MOST_DAYS = 60
_KINDS = ("completed", "open", "failed", "other")
"""Parts of a day's bar, from the bottom."""


def routes(page: Page) -> list[Route]:
    async def shown(request: Request) -> Response:
        fields = {name: value for name, value in request.query_params.items() if value.strip()}
        clauses = [Clause(name, fields[name]) for name in NAMES if name in fields]
        clauses += clauses_in(fields.get("where", ""))
        wanted = filter_from(clauses)
        found = await asyncio.to_thread(statistics, page.feed.index, wanted)
        edges = found.edges[:MOST_EDGES]
        return page.render(
            request,
            "statistics.html",
            found=found,
            where=text_of(clauses),
            listed=urlencode({"where": text_of(clauses)} if clauses else {}),
            days=day_bars(found.days[-MOST_DAYS:]),
            edges=list(zip(edges, shares(each.passed + each.refused for each in edges), strict=True)),
            more_edges=len(found.edges) - len(edges),
            rules=list(zip(found.rules, shares(each.refused for each in found.rules), strict=True)),
            depths=[
                (depth, count, share)
                for (depth, count), share in zip(
                    found.depths.items(), shares(found.depths.values()), strict=True
                )
            ],
            behind=page.feed.behind,
        )

    return [Route("/statistics", shown)]


def shares(counts: Iterable[int]) -> list[float]:
    """Return each count as percent of the largest one."""
    found = list(counts)
    most = max(found, default=0)
    return [round(100 * count / most, 2) if most else 0.0 for count in found]


class DayPart(NamedTuple):
    """A part of a day's bar, in percent of the plot's height from the top."""

    kind: str
    top: float
    height: float


class DayBar(NamedTuple):
    """One day of the plot."""

    day: str
    requests: int
    told: str
    parts: list[DayPart]


def day_bars(days: Sequence[DayStatistics]) -> list[DayBar]:
    """Return the bars of days; the highest one fills the plot."""
    most = max((each.requests for each in days), default=0)
    return [_bar(each, most) for each in days]


def _bar(day: DayStatistics, most: int) -> DayBar:
    counts = dict.fromkeys(_KINDS, 0)
    for status, count in day.statuses.items():
        kind = status if status in counts else "failed" if status in ("expired", "refused") else "other"
        counts[kind] += count
    parts, top = list[DayPart](), 100.0
    for kind, count in counts.items():
        height = 100 * count / most
        top -= height
        if count:
            parts.append(DayPart(kind, round(top, 2), round(height, 2)))
    told = ", ".join(f"{status} {count}" for status, count in day.statuses.items())
    return DayBar(day.day, day.requests, told, parts)
