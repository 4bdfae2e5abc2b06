"""Views: the agents of the mesh, and the mesh as a whole."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.bus.reader import bounds
from mesh.errors import UsageWrong
from mesh.ops import control, dead_letters, health, roster
from mesh.ops.roster import Breaker, RosterEntry
from mesh.ops.rows import EdgeCount
from mesh.service.logs import get_logger
from mesh.ui.page import Page, is_piece
from protocol.wire.config import Fleet
from protocol.wire.events import type_of
from protocol.wire.ids import HUMAN

_log = get_logger(__name__)
MOST_LETTERS = 200
"""Letters that are listed, counted in places of their stream from its end."""


def routes(page: Page) -> list[Route]:
    async def agents(request: Request) -> Response:
        fleet = await roster.fleet_of(page.bus)
        members = await roster.roster(page.bus)
        known = {each.agent: each for each in await roster.breakers(page.bus)}
        happened = await asyncio.to_thread(page.feed.index.edges)
        return page.render(
            request,
            "fleet.html" if is_piece(request) else "agents.html",
            members=members,
            states={each.name: _state(each, known.get(each.name)) for each in members},
            breakers=known,
            handovers=handovers(fleet, happened),
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
            raise UsageWrong(f"enter a reason: a {what} is recorded with it; nothing was done")
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


def _state(member: RosterEntry, breaker: Breaker | None) -> str:
    """Return `alive`, `failing`, `absent`, or nothing if that may not be asked."""
    if breaker is not None and breaker.state != "closed":
        return "failing"
    if member.instances is None:
        return ""
    return "alive" if member.instances else "absent"


class Handovers(NamedTuple):
    """Who gives work to whom: a table of givers by takers."""

    takers: list[str]
    rows: list[tuple[str, list["Cell"]]]
    """By giver: a cell for each taker."""


class Cell(NamedTuple):
    """What happened between a giver and a taker, and whether the fleet file allows more of it."""

    may: bool = False
    passed: int = 0
    refused: int = 0


def handovers(fleet: Fleet, happened: Sequence[EdgeCount]) -> Handovers:
    """Return who may hand to whom, with what happened there; also what happened although it is not allowed.

    Names come in the fleet's order, then people, then names that the fleet no longer has. A name that neither
    gives nor takes has no row or column.
    """
    counts = {(each.giver, each.taker): each for each in happened}
    may = {
        (name, taker)
        for name, entry in fleet.agents.items()
        for taker in (fleet.agents if entry.to is None else entry.to)
        if taker != name
    }
    if fleet.human:
        may |= {(name, HUMAN) for name in fleet.agents}
    pairs = may | counts.keys()
    known = [*fleet.agents, HUMAN]
    known += sorted({name for pair in pairs for name in pair} - {*known})
    givers = [name for name in known if any(giver == name for giver, _ in pairs)]
    takers = [name for name in known if any(taker == name for _, taker in pairs)]

    def cell(pair: tuple[str, str]) -> Cell:
        found = counts.get(pair)
        return Cell(pair in may, *((0, 0) if found is None else (found.passed, found.refused)))

    return Handovers(takers, [(giver, [cell((giver, taker)) for taker in takers]) for giver in givers])
