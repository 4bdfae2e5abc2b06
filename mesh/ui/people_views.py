"""What waits for people, and what they decide.

A form names the event that its visitor looked at. If something else waits by the time it is sent, nothing is
done: a yes is for what was shown, and for nothing else.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.agent._reply_schema import ReplyInvalid, SchemaUnusable, check_reply
from mesh.bus.connection import Bus
from mesh.errors import UsageWrong
from mesh.ops import queue
from mesh.ui.fields import number
from mesh.ui.page import Page
from mesh.ui.schema_form import field_for, value_in
from protocol.wire.events import type_of
from protocol.wire.handoff import Budget

_APPROVAL = re.compile(r".*? asks for approval: (?P<tool>\S+) (?P<arguments>\{.*\})", re.DOTALL)
"""The question of an approval, as `mesh.agent` puts it."""
_HOW = ("back", "to", "again", "complete")


def routes(page: Page) -> list[Route]:
    async def many(request: Request) -> Response:
        tier = request.query_params.get("tier", "").strip() or None
        await queue.require_tier(page.bus, tier)
        found = await queue.queue(page.bus)
        return page.render(
            request,
            "people.html",
            waiting=[each for each in found.waiting if tier in (None, each.tier_name)],
            unreadable=found.unreadable,
            tiers=(await queue.people_of(page.bus)).tiers,
            tier=tier,
        )

    async def one(request: Request) -> Response:
        return await _shown(page, request)

    async def decided(request: Request) -> Response:
        decide = _DECISIONS.get(request.path_params["decision"])
        if decide is None:
            raise UsageWrong(f"people can {', '.join(_DECISIONS)}")
        name, form = request.path_params["request"], request.scope["mesh.form"]
        n = number(form, "n", None)
        if n is None:
            raise UsageWrong("the form does not name the event that it is about; nothing was done")
        bus = await page.operator()
        try:
            words = await decide(bus, name, form, page.person(request), n)
        except (UsageWrong, ReplyInvalid) as wrong:
            return await _shown(page, request, said=form, wrong=str(wrong))
        return page.done(request, "/people", f"{name} {words}")

    return [
        Route("/people", many),
        Route("/people/{request}", one),
        Route("/people/{request}/{decision}", decided, methods=["POST"]),
    ]


async def _shown(
    page: Page, request: Request, said: Mapping[str, str] | None = None, wrong: str = ""
) -> Response:
    found = await queue.waiting_at(page.bus, request.path_params["request"])
    waiting, fleet = found.waiting, await queue.people_of(page.bus)
    return page.render(
        request,
        "waiting.html",
        status=400 if wrong else 200,
        each=msgspec.structs.replace(waiting, tier_name=fleet.tier_for(waiting.tier)),
        handoff=found.handoff,
        told=found.timeline,
        agents=sorted(fleet.agents),
        field=field_for(waiting.schema) if waiting.what == "ask" else None,
        arguments=_arguments(waiting),
        said=said or {},
        wrong=wrong,
    )


def _arguments(waiting: queue.Waiting) -> Any:
    """Return the arguments of the effect that waits for approval; None if they are not told, or cut."""
    asked = _APPROVAL.fullmatch(waiting.summary) if waiting.what == "ask" and waiting.action else None
    try:
        return None if asked is None else msgspec.json.decode(asked["arguments"])
    except msgspec.DecodeError:
        return None


# --- decisions ------------------------------------------------------------------------------------


async def _resolve(bus: Bus, request: str, form: Mapping[str, str], by: str, n: int) -> str:
    how = form.get("how", "")
    if how not in _HOW:
        raise UsageWrong("say how it goes on")
    to, answer = form.get("to", "").strip(), form.get("answer", "")
    if how == "to" and not to:
        raise UsageWrong("say which agent gets it")
    if how == "complete" and not answer.strip():
        raise UsageWrong("say the answer")
    kinds = {kind: number(form, kind, None) for kind in Budget.__struct_fields__}
    granted = {kind: value for kind, value in kinds.items() if value is not None}
    if how == "complete" and granted:
        raise UsageWrong("an answer needs no budget")
    event = await queue.resolve(
        bus,
        request,
        by=by,
        to=to if how == "to" else None,
        again=how == "again",
        answer=answer if how == "complete" else None,
        note=form.get("note", "").strip(),
        budget=Budget(**granted) if granted else None,
        n=n,
    )
    return "is completed" if how == "complete" else f"went to {event.to} (event {event.n})"


async def _assign(bus: Bus, request: str, form: Mapping[str, str], by: str, n: int) -> str:
    person = form.get("person", "").strip()
    if not person:
        raise UsageWrong("say whose it is")
    await queue.assign(bus, request, person, by=by, n=n)
    return f"is {person}'s to look at"


async def _reply(bus: Bus, request: str, form: Mapping[str, str], by: str, n: int) -> str:
    schema = (await queue.waiting_at(bus, request)).waiting.schema
    value = value_in(form, field_for(schema))
    unchecked = ""
    try:
        await asyncio.to_thread(check_reply, schema, value)  # it may take long; event `n` has no other schema
    except SchemaUnusable as unusable:
        unchecked = f", unchecked: the question's schema cannot be used ({unusable})"
    done = await queue.reply(
        bus, request, value, by=by, check=lambda schema, value: None, connect_as=_nobody, n=n
    )
    return f"goes on with the reply{unchecked} (event {done.event})"


async def _nobody(client: str) -> Bus | None:
    """Return no connection: what a client is asked, that client alone replies to."""
    return None


async def _settle(bus: Bus, request: str, form: Mapping[str, str], by: str, n: int) -> str:
    outcome, result = form.get("outcome", ""), form.get("result", "")
    if outcome not in ("done", "not_done"):
        raise UsageWrong("say if it was done")
    if outcome == "not_done" and result.strip():
        raise UsageWrong("what was not done has no result")
    value: Any = None
    if result.strip():
        try:
            value = msgspec.json.decode(result)
        except (msgspec.DecodeError, RecursionError):
            value = result
    event = await queue.settle(bus, request, by=by, done=outcome == "done", result=value, n=n)
    return f"is settled as {outcome.replace('_', ' ')}: {type_of(event)} (event {event.n})"


_DECISIONS = {"resolve": _resolve, "assign": _assign, "reply": _reply, "settle": _settle}
