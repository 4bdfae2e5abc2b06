"""Requests, as a list: filtered, a page at a time, and up to date."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from time import time
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.errors import UsageWrong
from mesh.ops.requests import STATUSES
from mesh.ui.fields import number
from mesh.ui.page import Page, is_piece
from mesh.ui.projection import Filter, Row
from protocol.wire.ids import is_name

PAGE = 50
MOST_TEXT = 200
"""Characters that are looked for."""
STATES = (*STATUSES, "unreadable")
TAGGED = ("agent", "client", "rule")
SPANS = {"15m": 900, "1h": 3_600, "1d": 86_400, "7d": 604_800, "30d": 2_592_000}
"""Ages that can be chosen, in seconds."""


def routes(page: Page) -> list[Route]:
    async def many(request: Request) -> Response:
        said = {name: value for name, value in request.query_params.items() if value.strip()}
        wanted, before = filter_of(said, time()), number(said, "before", None)
        found = await page.listed(wanted, before=before, limit=PAGE + 1)
        rows = found[:PAGE]
        sign = _sign(rows)
        if is_piece(request) and said.get("seen") == sign:
            return Response(status_code=204)  # nothing is new, and the page stays as it is
        kept = {name: value for name, value in said.items() if name not in ("before", "seen")}
        more = urlencode(kept | {"before": rows[-1].id}) if len(found) > PAGE else ""
        return page.render(
            request,
            "rows.html" if is_piece(request) else "requests.html",
            rows=rows,
            said=kept,
            before=before,
            here=urlencode(kept | ({} if before is None else {"before": before})),
            first=urlencode(kept),
            more=more,
            sign=sign,
            behind=page.feed.behind,
            trouble=page.feed.trouble,
            choices={"status": STATES, "younger": tuple(SPANS), "older": tuple(SPANS)}
            | ({} if is_piece(request) else {kind: await page.tagged(kind) for kind in TAGGED}),
        )

    return [Route("/requests", many)]


def filter_of(said: Mapping[str, str], now_s: float) -> Filter:
    """Return which requests a visitor asks for. Raises UsageWrong."""
    tags = []
    if "status" in said:
        tags.append(f"status:{_one_of(said, 'status', STATES)}")
    for kind in TAGGED:
        if kind in said:
            if not is_name(said[kind].replace("_", "-")):
                raise UsageWrong(f"{kind}: {said[kind][:40]!r} is no name")
            tags.append(f"{kind}:{said[kind]}")
    since = int((now_s - SPANS[_one_of(said, "younger", SPANS)]) * 1e6) if "younger" in said else None
    until = int((now_s - SPANS[_one_of(said, "older", SPANS)]) * 1e6) if "older" in said else None
    text = said.get("text", "").strip()
    if len(text) > MOST_TEXT:
        raise UsageWrong(f"text has {MOST_TEXT} characters at most")
    return Filter(
        tags=tuple(tags),
        text=text,
        nano_dollars=_nano_dollars(said.get("cost", "")),
        since=since,
        until=until,
    )


def _one_of(said: Mapping[str, str], name: str, allowed: tuple[str, ...] | Mapping[str, int]) -> str:
    if said[name] not in allowed:
        raise UsageWrong(f"{name}: {said[name][:40]!r} is none of {', '.join(allowed)}")
    return said[name]


def _nano_dollars(said: str) -> int:
    """Return an amount of dollars as nano-dollars; 0 where nothing is said. Raises UsageWrong."""
    try:
        dollars = Decimal(said.strip().removeprefix("$") or 0)
    except InvalidOperation:
        dollars = Decimal(-1)
    if not (dollars.is_finite() and 0 <= dollars <= 10**9):
        raise UsageWrong(f"cost: {said[:40]!r} is no amount of dollars")
    return int(dollars * 10**9)


def _sign(rows: list[Row]) -> str:
    """Return what tells one state of a page of rows from another."""
    return f"{len(rows)}-{rows[0].id}-{max(row.last for row in rows)}" if rows else "0"
