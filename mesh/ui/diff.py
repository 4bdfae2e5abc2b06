"""View: two requests side by side, with what `mesh diff` says of them."""

import asyncio
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from mesh.errors import UsageWrong
from mesh.ops.diff import CoursePair, after_fork, change_in_words, compared
from mesh.ops.log import checked_id, is_prefix, whole_id
from mesh.ui.page import Page, number
from protocol.views.timeline import Timeline, timeline
from protocol.wire.ids import is_request_id

ROWS = 100
"""Places of both requests in one part of the view."""


def routes(page: Page) -> list[Route]:
    """Return the routes that compare a request with another one."""

    async def side(request: str, through: int | None) -> Timeline:
        return timeline((await page.stories.read(request)).until(through))

    async def choose(request: Request) -> Response:
        """Ask for the other request, or go to the comparison with it."""
        name, typed = request.path_params["request"], request.query_params.get("with", "").strip()
        if typed:
            return RedirectResponse(f"/requests/{name}/diff/{await _whole(page, typed)}", 303)
        told = await side(name, None)
        related = [each for each in (told.forked_from and told.forked_from.request, told.rerun_of) if each]
        related += await asyncio.to_thread(page.feed.index.forks_of, name)
        return page.render(request, "diff_with.html", name=name, related=related)

    async def shown(request: Request) -> Response:
        a, b = request.path_params["request"], request.path_params["other"]
        query = request.query_params
        through = number(query, "a", None), number(query, "b", None)
        texts, whole = bool(query.get("texts")), bool(query.get("whole"))
        one, other = await side(a, through[0]), await side(b, through[1])
        forked = after_fork(one, other)
        after = (None, None) if whole else forked
        found = await asyncio.to_thread(compared, one, other, texts=texts, through=through, after=after)
        return page.render(
            request,
            "diff.html",
            found=found,
            sides=(one, other),
            changes=[change_in_words(each) for each in found.fields],
            shown=part_of(found.rows, number(query, "part", 0) or 0),
            forked=forked,
            texts=texts,
            whole=whole,
            link=functools.partial(_address, request.url.path, query),
            swapped=_address(f"/requests/{b}/diff/{a}", query, a=query.get("b", ""), b=query.get("a", "")),
        )

    return [
        Route("/requests/{request:request_id}/diff", choose),
        Route("/requests/{request:request_id}/diff/{other:request_id}", shown),
    ]


def _address(path: str, query: Mapping[str, str], **changed: str | int) -> str:
    """Return the address of this view with other fields; an empty one is left out, and so is the part."""
    fields = {name: query.get(name, "") for name in ("texts", "whole", "a", "b")} | changed
    kept = {name: value for name, value in fields.items() if value != ""}
    return f"{path}?{urlencode(kept)}" if kept else path


class RowsPart(NamedTuple):
    """One part of a comparison."""

    rows: Sequence[CoursePair]
    part: int
    """Which one it is, from 0."""
    last: int
    parted: int | None
    """The part with the first row that differs; None if there is none."""


def part_of(rows: Sequence[CoursePair], part: int, size: int = ROWS) -> RowsPart:
    """Return a part of the rows, each of so many; the last one if there are fewer parts."""
    last = max(0, (len(rows) - 1) // size)
    part = min(part, last)
    parted = next((at // size for at, row in enumerate(rows) if not row.is_same), None)
    return RowsPart(rows[part * size : (part + 1) * size], part, last, parted)


async def _whole(page: Page, typed: str) -> str:
    """Return the id that was typed, or of which the beginning was. Raises UsageWrong, NotFound, BusError."""
    if is_request_id(typed):
        return typed
    if not is_prefix(typed):
        raise UsageWrong(f"not a request's id: {typed[:60]!r}; they look like `app_01JAZ…`")
    return checked_id(await whole_id(page.bus, typed))
