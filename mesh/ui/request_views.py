"""One request: what happened, how it stood after each event, why, and what happens now."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.errors import UsageWrong
from mesh.ops import control, queue
from mesh.ops.explain import VERDICTS, explain, sentences
from mesh.ui.drawing.scene import mermaid, scene
from mesh.ui.fields import number
from mesh.ui.live import live
from mesh.ui.page import Page, is_piece
from mesh.ui.story import Stories, as_html, pictures, standing
from protocol.wire.events import type_of

EVENTS = 100
"""Entries of one part of a request's list."""


def routes(page: Page) -> list[Route]:
    stories = Stories(page.bus)

    async def one(request: Request) -> Response:
        story = await stories.read(request.path_params["request"])
        at = number(request.query_params, "at", None)
        at = None if at is None or at >= len(story.happened) - 1 else at
        told = await stories.told(story, at)
        shown = story.until(at)
        last = max(0, (len(told.moves) - 1) // EVENTS)
        part = min(number(request.query_params, "part", 0) or 0, last)
        rows = number(request.query_params, "rows", 0) or 0
        return page.render(
            request,
            "story.html" if is_piece(request) else "request.html",
            told=told,
            drawn=pictures(told, shown, rows, f"/requests/{told.request}/events/"),
            began=story.happened[0].at,
            stands=standing(shown),
            at=at,
            head=len(story.happened) - 1,
            moves=told.moves[part * EVENTS : (part + 1) * EVENTS],
            part=part,
            last_part=last,
            waiting=queue.waiting_in(story.happened),
        )

    async def event(request: Request) -> Response:
        story = await stories.read(request.path_params["request"])
        n = request.path_params["n"]
        found = story.until(n)[-1]
        why = list(sentences(explain(story.happened, n))) if isinstance(found, VERDICTS) else []
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
        told = await stories.told(story)
        if form == "html":
            body, kind, ending = as_html(told, story.happened, story.bodies).encode(), "text/html", "html"
        elif form == "mermaid":
            body, kind, ending = mermaid(scene(told)).encode(), "text/plain", "mmd"
        elif form == "json":
            encoded = msgspec.json.encode(story.document(told))
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
        return await live(page, request.path_params["request"])

    one_path = "/requests/{request}"
    return [
        Route(one_path, one),
        Route(one_path + "/events/{n:int}", event),
        Route(one_path + "/live", live_notes),
        Route(one_path + "/download/{form}", download),
        Route(one_path + "/order/{order}", ordered, methods=["POST"]),
    ]
