"""Views: the list of requests, filtered and live; and one request, with what happened and why.

Server-sent events report what happens now: `note`, a live note of the running turn (its steps, and the
model's text as it comes); `grown`, the number of the newest event in the log; `ended`, how the request ended,
and then the stream ends. Notes go only to the request's own client: they are here only if its key is
available.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.bus.event_log import JetStreamLog
from mesh.client import Client
from mesh.client.follow import AgentNote
from mesh.errors import PASSING, MeshError, NotFound, UsageWrong
from mesh.ops import control, log, queue
from mesh.ops.calls import calls_of
from mesh.ops.explain import explain, sentences
from mesh.ops.rows import STATUSES, Listed
from mesh.ops.where import NAMES, TAGGED, Clause, clauses_in, filter_from, text_of
from mesh.ui.drawing.scene import mermaid, scene
from mesh.ui.page import Page, is_piece, number
from mesh.ui.security import Visit
from mesh.ui.story import as_html, pictures, standing
from mesh.web.streams import BEAT, CountedStream, server_sent, with_beats
from protocol.wire.events import Verdict, type_of
from protocol.wire.ids import submitter_of


def routes(page: Page) -> list[Route]:
    """Return the routes of the list, and of one request."""
    return [*list_routes(page), *request_routes(page)]


# --- many ---------------------------------------------------------------------------------------


PAGE = 50
SPANS = ("15m", "1h", "1d", "7d", "30d")
"""Ages that can be chosen."""


def list_routes(page: Page) -> list[Route]:
    async def many(request: Request) -> Response:
        fields = {name: value for name, value in request.query_params.items() if value.strip()}
        clauses = [Clause(name, fields[name]) for name in NAMES if name in fields]
        clauses += clauses_in(fields.get("where", ""))
        wanted, before = filter_from(clauses), number(fields, "before", None)
        index = page.feed.index
        found = await asyncio.to_thread(index.page, wanted, before=before, limit=PAGE + 1)
        rows = found[:PAGE]
        sign = _sign(rows)
        if is_piece(request) and fields.get("seen") == sign:
            return Response(status_code=204)  # nothing is new, so the page stays as it is
        kept = {name: value for name, value in fields.items() if name not in ("before", "seen")}
        more = urlencode(kept | {"before": rows[-1].id}) if len(found) > PAGE else ""
        return page.render(
            request,
            "rows.html" if is_piece(request) else "requests.html",
            rows=rows,
            given=kept,
            where=text_of(clauses),
            before=before,
            here=urlencode(kept | ({} if before is None else {"before": before})),
            first=urlencode(kept),
            more=more,
            sign=sign,
            behind=page.feed.behind,
            trouble=page.feed.trouble,
            choices={"status": STATUSES, "since": SPANS, "until": SPANS}
            | (
                {}
                if is_piece(request)
                else {kind: await asyncio.to_thread(index.named, kind) for kind in TAGGED}
            ),
        )

    return [Route("/requests", many)]


def _sign(rows: list[Listed]) -> str:
    """Return a digest of a page of rows, which changes with any of them."""
    return f"{len(rows)}-{rows[0].id}-{max(row.last for row in rows)}" if rows else "0"


# --- one ----------------------------------------------------------------------------------------


EVENTS = 100
"""Entries of one part of a request's list."""
ROUNDS = 20
"""Rounds in one part of the list of their calls."""


def request_routes(page: Page) -> list[Route]:
    stories = page.stories

    async def one(request: Request) -> Response:
        name = request.path_params["request"]
        try:
            story = await stories.read(name)
        except NotFound as missing:  # it may just have been sent
            return page.error(request, 404, str(missing), missing.code, awaits=name)
        at = number(request.query_params, "at", None)
        at = None if at is None or at >= len(story.happened) - 1 else at
        forks = await asyncio.to_thread(page.feed.index.forks_of, name)
        view = replace(await stories.timeline(story, at), forks=forks)
        shown = story.until(at)
        last = max(0, (len(view.moves) - 1) // EVENTS)
        part = min(number(request.query_params, "part", 0) or 0, last)
        rows = number(request.query_params, "rows", 0) or 0
        return page.render(
            request,
            "story.html" if is_piece(request) else "request.html",
            told=view,
            drawn=pictures(view, shown, rows, f"/requests/{view.request}/events/"),
            began=story.happened[0].at,
            stands=standing(shown),
            at=at,
            head=len(story.happened) - 1,
            moves=view.moves[part * EVENTS : (part + 1) * EVENTS],
            part=part,
            last_part=last,
            waiting=queue.waiting_in(story.happened),
        )

    async def calls(request: Request) -> Response:
        story = await stories.read(request.path_params["request"])
        rounds = await calls_of(page.bus, story.happened)
        last = max(0, (len(rounds) - 1) // ROUNDS)
        part = min(number(request.query_params, "part", 0) or 0, last)
        return page.render(
            request,
            "calls.html",
            name=request.path_params["request"],
            rounds=rounds[part * ROUNDS : (part + 1) * ROUNDS],
            part=part,
            last_part=last,
        )

    async def arrival(request: Request) -> Response:
        """Reload the page that waits for its request once that is in the log; do nothing until then."""
        head = await JetStreamLog(page.bus, leader=False).head(log.checked_id(request.path_params["request"]))
        return Response(status_code=204, headers={} if head is None else {"hx-refresh": "true"})

    async def event(request: Request) -> Response:
        story = await stories.read(request.path_params["request"])
        n = request.path_params["n"]
        found = story.until(n)[-1]
        why = list(sentences(explain(story.happened, n))) if isinstance(found, Verdict) else []
        return page.render(
            request,
            "event_piece.html" if is_piece(request) else "event.html",
            name=request.path_params["request"],
            event=found,
            type=type_of(found),
            body=story.bodies[n],
            why=why,
            head=len(story.happened) - 1,
        )

    async def download(request: Request) -> Response:
        name, form = request.path_params["request"], request.path_params["form"]
        story = await stories.read(name)
        view = await stories.timeline(story)
        if form == "html":
            body, kind, ending = as_html(view, story.happened, story.bodies).encode(), "text/html", "html"
        elif form == "mermaid":
            body, kind, ending = mermaid(scene(view)).encode(), "text/plain", "mmd"
        elif form == "json":
            encoded = msgspec.json.encode(log.documented(view, story.bodies))
            body, kind, ending = msgspec.json.format(encoded, indent=2), "application/json", "json"
        else:
            raise UsageWrong("a request is downloaded as html, mermaid or json")
        kept = {"content-disposition": f'attachment; filename="{name}.{ending}"'}
        return Response(body, media_type=kind, headers=kept)

    async def ordered(request: Request) -> Response:
        """Freeze, thaw or cancel a request."""
        name, form = request.path_params["request"], request.scope["mesh.form"]
        order = {"freeze": control.freeze, "thaw": control.thaw, "cancel": control.cancel}.get(
            request.path_params["order"]
        )
        if order is None:
            raise UsageWrong("a request can be frozen, thawed and cancelled")
        event = await order(
            await page.operator(), name, by=page.person(request), reason=form.get("reason", "").strip()
        )
        return page.done(request, f"/requests/{name}", f"{type_of(event)} (event {event.n})")

    async def live_notes(request: Request) -> Response:
        return await live(page, request.path_params["request"], request.scope["mesh.visit"])

    one_path = "/requests/{request:request_id}"
    return [
        Route(one_path, one),
        Route(one_path + "/calls", calls),
        Route(one_path + "/arrival", arrival),
        Route(one_path + "/events/{n:int}", event),
        Route(one_path + "/live", live_notes),
        Route(one_path + "/download/{form}", download),
        Route(one_path + "/order/{order}", ordered, methods=["POST"]),
    ]


# --- one, as it goes on -------------------------------------------------------------------------


_POLL_S = 0.5
MOST_WAITING = 500
"""Notes that wait for a slow browser; further ones are dropped."""


async def live(page: Page, request: str, visit: Visit) -> Response:
    """Return the stream of a request. Raises NotFound, UsageWrong, BusError."""
    name = log.checked_id(request)
    head = await JetStreamLog(page.bus, leader=False).head(name)
    if head is None:
        raise NotFound(await log.not_there(page.bus, name))
    client = None
    with contextlib.suppress(MeshError):  # then there are no notes, but everything else
        client = await page.client_of(submitter_of(name))
    limits = page.options.limits
    return CountedStream(
        _stream(page, name, client, visit),
        page.streams,
        visit.id,
        most=(limits.streams, limits.streams_of_one),
        full=Response("too many live views are open\n", 503, media_type="text/plain"),
    )


async def _stream(page: Page, request: str, client: Client | None, visit: Visit) -> AsyncGenerator[bytes]:
    waiting, beat_s = asyncio.Queue[bytes](), page.options.limits.beat_s
    sources = [_growing(page, request, waiting)]
    if client is not None:
        sources.append(_noted(client, request, waiting))
    reading = [asyncio.create_task(each) for each in sources]
    try:
        async with contextlib.aclosing(with_beats(waiting.get, page.stopping, beat_s)) as items:
            async for item in items:
                if page.security.is_over(visit):
                    return
                yield BEAT if item is None else item
                if item is not None and item.startswith(b"event: ended"):
                    return
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def _growing(page: Page, request: str, waiting: asyncio.Queue[bytes]) -> None:
    """Report how far the log is, until the request ends."""
    events, known = JetStreamLog(page.bus, leader=False), -1
    while True:
        with contextlib.suppress(*PASSING):
            head = await events.head(request)
            seen = None if head is None else log.header_of(head.data)
            if seen is not None and seen.n != known:
                known = seen.n
                waiting.put_nowait(server_sent("grown", {"n": known}))
            if seen is not None and seen.is_end:
                waiting.put_nowait(server_sent("ended", {"type": seen.type}))
                return
        await asyncio.sleep(_POLL_S)


async def _noted(client: Client, request: str, waiting: asyncio.Queue[bytes]) -> None:
    """Pass on the live notes of the running turn."""
    async with client.follow(request) as feed:
        async for item in feed:
            if isinstance(item, AgentNote) and waiting.qsize() < MOST_WAITING:
                note = msgspec.to_builtins(item.note)
                waiting.put_nowait(server_sent("note", {"agent": item.agent, **note}))
