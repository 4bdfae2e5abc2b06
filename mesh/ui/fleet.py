"""Views: the agents of the mesh, and the mesh as a whole."""

import asyncio
from collections.abc import Mapping, Sequence

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.bus.reader import bounds
from mesh.errors import UsageWrong
from mesh.ops import control, dead_letters, health, roster
from mesh.ops.roster import Breaker, Member
from mesh.service.logs import get_logger
from mesh.service.printable import counted
from mesh.ui.drawing.graph import Edge, Node, graph
from mesh.ui.page import Page, is_piece
from mesh.ui.projection import EdgeCount
from protocol.wire.config import Fleet
from protocol.wire.events import type_of
from protocol.wire.ids import HUMAN

_log = get_logger(__name__)
MOST_LETTERS = 200
"""Places of the stream of dead letters that are listed, from its end."""
_FEW = 8
"""Agents of a fleet up to which all edges are drawn where everybody may hand to everybody."""


def routes(page: Page) -> list[Route]:
    async def agents(request: Request) -> Response:
        fleet = await roster.fleet_of(page.bus)
        members = await roster.roster(page.bus)
        stands = {each.agent: each for each in await roster.breakers(page.bus)}
        edges = _edges(fleet, await asyncio.to_thread(page.feed.projection.edges))
        drawn = graph(_nodes(members, stands, fleet), edges, entry=fleet.entry)
        return page.render(
            request,
            "fleet.html" if is_piece(request) else "agents.html",
            members=members,
            states={each.name: _state(each, stands.get(each.name)) for each in members},
            breakers=stands,
            edges=sorted(edges, key=lambda edge: (-edge.refused, -edge.passed, edge.giver, edge.taker)),
            drawn=Markup(drawn),  # the drawing escapes every text itself
            entry=fleet.entry,
        )

    async def mesh(request: Request) -> Response:
        last = (await bounds(page.bus, dead_letters.STREAM))[1]
        from_seq = max(1, last - MOST_LETTERS + 1)
        letters = [each async for each in dead_letters.letters(page.bus, from_seq)]
        return page.render(
            request,
            "mesh.html",
            letters=letters[::-1],
            freeze=await roster.mesh_freeze(page.bus),
            most=MOST_LETTERS,
        )

    async def findings(request: Request) -> Response:
        found = await health.examine(page.keys.reader, page.options.file, page.options.monitor)
        return page.render(
            request, "findings_piece.html" if is_piece(request) else "findings.html", findings=found
        )

    async def letter(request: Request) -> Response:
        seq = request.path_params["seq"]
        return page.render(
            request, "letter.html", seq=seq, letter=await dead_letters.letter_at(page.bus, seq)
        )

    async def resend(request: Request) -> Response:
        seq, by = request.path_params["seq"], page.person(request)
        event = await dead_letters.resend(await page.admin(), seq)
        _log.info(
            "ui_dead_letter_resent", seq=seq, by=by, request=event.request
        )  # the log has no place for it
        return page.done(
            request, f"/requests/{event.request}", f"decided: {type_of(event)} (event {event.n})"
        )

    async def order(request: Request) -> Response:
        """Freeze or thaw the whole mesh."""
        what, form = request.path_params["order"], request.scope["mesh.form"]
        reason = form.get("reason", "").strip()
        if what not in ("freeze", "thaw"):
            raise UsageWrong("the mesh can be frozen and thawed")
        if not reason:
            raise UsageWrong(f"say why: a {what} is recorded with its reason; nothing was done")
        bus = await page.operator()
        await control.set_mesh_freeze(bus, what == "freeze", by=page.person(request), reason=reason)
        return page.done(request, "/mesh", f"the whole mesh is {'frozen' if what == 'freeze' else 'thawed'}")

    return [
        Route("/agents", agents),
        Route("/mesh", mesh),
        Route("/mesh/findings", findings),
        Route("/mesh/dead/{seq:int}", letter),
        Route("/mesh/dead/{seq:int}/resend", resend, methods=["POST"]),
        Route("/mesh/{order}", order, methods=["POST"]),
    ]


def _state(member: Member, breaker: Breaker | None) -> str:
    """Return `alive`, `failing`, `absent`, or nothing where nobody may ask."""
    if breaker is not None and breaker.state != "closed":
        return "failing"
    if member.instances is None:
        return ""
    return "alive" if member.instances else "absent"


def _nodes(members: Sequence[Member], stands: Mapping[str, Breaker], fleet: Fleet) -> list[Node]:
    people = [Node(name=HUMAN)] if fleet.human else []
    return [
        *(
            Node(
                name=each.name,
                state=_state(each, stands.get(each.name)),
                words=counted(each.waiting, "handoff") + " waiting" if each.waiting else "",
            )
            for each in members
        ),
        *people,
    ]


def _edges(fleet: Fleet, happened: Sequence[EdgeCount]) -> list[Edge]:
    """Return who may hand to whom, with what happened there; also what happened where it may not be."""
    counts = {(each.giver, each.taker): each for each in happened}
    names = tuple(fleet.agents)
    may = {
        (name, taker)
        for name, entry in fleet.agents.items()
        for taker in (entry.to if entry.to is not None else names if len(names) <= _FEW else ())
        if taker != name
    }
    return [
        Edge(giver=giver, taker=taker, passed=each.passed, refused=each.refused)
        if (each := counts.get((giver, taker)))
        else Edge(giver=giver, taker=taker)
        for giver, taker in sorted(may | counts.keys())
    ]
