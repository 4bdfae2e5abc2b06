"""Views: what waits for people, and the forms by which they decide.

A form names the event that its visitor saw. If something else waits by the time it is sent, nothing is done.
A yes counts only for what was shown.

A question's form is made from its JSON Schema. It has fields for texts, numbers, yes or no, choices, lists
and objects of these; anything else gets one field for JSON. The schema is an agent's text, so nothing here
follows a reference or trusts a type. The whole schema judges the value afterwards.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.agent._reply_schema import ReplyInvalid, SchemaUnusable, check_reply
from mesh.bus.connection import Bus
from mesh.errors import UsageWrong
from mesh.ops import decisions, queue
from mesh.ops.where import nano_dollars
from mesh.service.printable import as_json_text, as_text, short
from mesh.ui.page import Page, number
from protocol.wire.events import type_of
from protocol.wire.handoff import Budget

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
            for_people=len(found.waiting),
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
            return await _shown(page, request, given=form, wrong=str(wrong))
        return page.done(request, "/people", f"{name} {words}")

    return [
        Route("/people", many),
        Route("/people/{request:request_id}", one),
        Route("/people/{request:request_id}/{decision}", decided, methods=["POST"]),
    ]


async def _shown(
    page: Page, request: Request, given: Mapping[str, str] | None = None, wrong: str = ""
) -> Response:
    n = number(given, "n", None) if given else number(request.query_params, "n", None)
    found = await queue.waiting_at(page.bus, request.path_params["request"], n)
    waiting, fleet = found.waiting, await queue.people_of(page.bus)
    return page.render(
        request,
        "waiting.html",
        status=400 if wrong else 200,
        each=msgspec.structs.replace(waiting, tier_name=fleet.tier_for(waiting.tier)),
        others=found.others,
        handoff=found.handoff,
        told=found.timeline,
        agents=sorted(fleet.agents),
        field=field_for(waiting.schema) if waiting.what == "ask" else None,
        why=found.why,
        given=given or {},
        wrong=wrong,
    )


# --- decisions ------------------------------------------------------------------------------------


def decision_in(form: Mapping[str, str]) -> dict[str, Any]:
    """Return what a form decides of an escalation, as `mesh.ops.decisions.resolve` takes it.

    Raises UsageWrong.
    """
    how = form.get("how", "")
    if how not in _HOW:
        raise UsageWrong("choose how to continue")
    to, answer = form.get("to", "").strip(), form.get("answer", "")
    if how == "to" and not to:
        raise UsageWrong("choose the agent that gets it")
    if how == "complete" and not answer.strip():
        raise UsageWrong("enter the answer")
    kinds = {kind: number(form, kind, None) for kind in ("tokens", "model_calls")}
    dollars = form.get("dollars", "").strip()
    kinds["nano_dollars"] = nano_dollars("dollars", dollars) if dollars else None
    granted = {kind: value for kind, value in kinds.items() if value is not None}
    if how == "complete" and granted:
        raise UsageWrong("an answer needs no budget")
    return {
        "to": to if how == "to" else None,
        "again": how == "again",
        "answer": answer if how == "complete" else None,
        "note": form.get("note", "").strip(),
        "budget": Budget(**granted) if granted else None,
    }


async def _resolve(bus: Bus, request: str, form: Mapping[str, str], by: str, n: int) -> str:
    if form.get("how") == "assign":
        return await _assign(bus, request, form, by, n)
    decision = decision_in(form)
    event = await decisions.resolve(bus, request, by=by, n=n, **decision)
    return "is completed" if decision["answer"] is not None else f"went to {event.to} (event {event.n})"


async def _assign(bus: Bus, request: str, form: Mapping[str, str], by: str, n: int) -> str:
    person = form.get("person", "").strip()
    if not person:
        raise UsageWrong("say whose it is")
    await decisions.assign(bus, request, person, by=by, n=n)
    return f"is {person}'s to look at"


async def reply(bus: Bus, request: str, form: Mapping[str, str], by: str, n: int) -> str:
    waiting = (await queue.waiting_at(bus, request, n)).waiting
    schema = waiting.schema
    value, reason = value_in(form, field_for(schema)), form.get("reason", "").strip()
    unchecked = ""
    try:
        await asyncio.to_thread(check_reply, schema, value)  # it may take long; event `n` has no other schema
    except SchemaUnusable as unusable:
        unchecked = f", unchecked: the question's schema cannot be used ({unusable})"
    done = await decisions.reply(
        bus,
        request,
        value,
        by=by,
        check=lambda schema, value: None,
        connect_as=_no_connection,
        n=n,
        reason=reason,
    )
    if waiting.what == "ask" and waiting.action:
        verdict = "approved" if value is True else "denied"
        return f"goes on: {waiting.action} was {verdict} by {by} (event {done.event})"
    return f"goes on with the reply{unchecked} (event {done.event})"


async def _no_connection(client: str) -> Bus | None:
    """Return no connection: only the client itself replies to a question to it."""
    return None


async def _settle(bus: Bus, request: str, form: Mapping[str, str], by: str, n: int) -> str:
    outcome, result = form.get("outcome", ""), form.get("result", "")
    if outcome not in ("done", "not_done"):
        raise UsageWrong("choose whether it was done")
    if outcome == "not_done" and result.strip():
        raise UsageWrong("what was not done has no result")
    value: Any = None
    if result.strip():
        try:
            value = msgspec.json.decode(result)
        except (msgspec.DecodeError, RecursionError):
            value = result
    event = await decisions.settle(bus, request, by=by, done=outcome == "done", result=value, n=n)
    return f"is settled as {outcome.replace('_', ' ')}: {type_of(event)} (event {event.n})"


_DECISIONS = {"resolve": _resolve, "reply": reply, "settle": _settle}


# --- a form for a schema ------------------------------------------------------------------------


Kind = Literal["text", "number", "yesno", "choice", "lines", "json", "object"]
MOST_FIELDS = 60
_DEEPEST = 3
_LONG = 80
"""Length from which on a text gets several lines."""
_NOTHING = object()


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a form, or an object with its own fields."""

    name: str
    """Its name in the form: a position, since the schema's names may be any text."""
    key: str
    """Its key in the object that it is a part of; empty for the whole value."""
    kind: Kind
    label: str
    help: str = ""
    required: bool = True
    value: str = ""
    """The initial value."""
    choices: tuple[str, ...] = ()
    """Each as JSON."""
    is_long: bool = False
    least: float | None = None
    most: float | None = None
    item: Kind | None = None
    """The kind of each line, if it has lines."""
    fields: tuple["Field", ...] = ()


def field_for(
    schema: Any, name: str = "value", key: str = "", *, required: bool = True, depth: int = 0
) -> Field:
    """Return the field, or the fields, for a value that a schema describes; None describes any text."""
    shape: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    kind = "text" if schema is None else _kind(shape, depth)
    described: dict[str, Any] = {
        "name": name,
        "key": key,
        "label": short(str(shape.get("title") or key or "Reply"), _LONG),
        "help": short(str(shape.get("description") or ""), 300),
        "required": required,
    }
    default = shape.get("default", _NOTHING)
    if kind == "object":
        wanted = shape.get("required")
        names = wanted if isinstance(wanted, list) else []
        fields = tuple(
            field_for(each, f"{name}.{place}", inner, required=required and inner in names, depth=depth + 1)
            for place, (inner, each) in enumerate(shape["properties"].items())
        )
        return Field(kind="object", fields=fields, **described)
    if kind == "choice":
        options = [shape["const"]] if "const" in shape else shape["enum"]
        first = "" if default is _NOTHING else as_json_text(default)
        return Field(kind=kind, choices=tuple(map(as_json_text, options)), value=first, **described)
    if kind == "lines":
        items = shape.get("items")
        item = "text" if items is None else _kind(items if isinstance(items, Mapping) else {}, _DEEPEST)
        text = "\n".join(map(as_text, default)) if isinstance(default, list) else ""
        return Field(kind=kind, item=item, value=text, is_long=True, **described)
    return Field(
        kind=kind,
        value="" if default is _NOTHING else as_json_text(default) if kind == "json" else as_text(default),
        is_long=kind == "json" or (kind == "text" and _limit(shape, "maxLength", _LONG + 1) > _LONG),
        least=shape.get("minimum") if isinstance(shape.get("minimum"), int | float) else None,
        most=shape.get("maximum") if isinstance(shape.get("maximum"), int | float) else None,
        **described,
    )


def _kind(shape: Mapping[str, Any], depth: int) -> Kind:
    """Return the kind of field for a schema; `json` if no other field fits."""
    if "const" in shape or (isinstance(shape.get("enum"), list) and 0 < len(shape["enum"]) <= MOST_FIELDS):
        return "choice"
    properties, items = shape.get("properties"), shape.get("items")
    match shape.get("type"):
        case "string":
            return "text"
        case "integer" | "number":
            return "number"
        case "boolean":
            return "yesno"
        case "array" if isinstance(items, Mapping) and _kind(items, _DEEPEST) in ("text", "number"):
            return "lines"
        case "object" if isinstance(properties, Mapping) and depth < _DEEPEST and _few(shape):
            return "object"
    return "json"


def _few(shape: Mapping[str, Any]) -> bool:
    """Return True if an object has few enough parts, including inner ones, for a field each."""
    count, nodes = 0, [shape]
    while nodes:
        inner = nodes.pop().get("properties")
        parts = list(inner.values()) if isinstance(inner, Mapping) else []
        count += len(parts)
        nodes += [each for each in parts if isinstance(each, Mapping)]
        if count > MOST_FIELDS:
            return False
    return count > 0


# --- and back -------------------------------------------------------------------------------------


def value_in(form: Mapping[str, str], field: Field) -> Any:
    """Return the value of a filled form. Raises UsageWrong for an invalid one."""
    value = _value(form, field)
    return {} if value is _NOTHING and field.kind == "object" else "" if value is _NOTHING else value


def _value(form: Mapping[str, str], field: Field) -> Any:
    if field.kind == "object":
        parts = {each.key: _value(form, each) for each in field.fields}
        values = {key: value for key, value in parts.items() if value is not _NOTHING}
        return values if values or field.required else _NOTHING
    text = form.get(field.name, "").replace("\r\n", "\n")
    if not text.strip():
        if field.required and field.kind in ("text", "lines"):
            return "" if field.kind == "text" else []
        if field.required:
            raise UsageWrong(f"{field.label}: nothing was said")
        return _NOTHING
    if field.kind == "lines":
        return [_read(field, line, field.item or "text") for line in text.split("\n") if line.strip()]
    return _read(field, text, field.kind)


def _read(field: Field, text: str, kind: Kind) -> Any:
    if kind == "text":
        return text
    try:
        value = msgspec.json.decode(text.strip())
    except (msgspec.DecodeError, UnicodeError, RecursionError) as wrong:
        raise UsageWrong(
            f"{field.label}: {text[:80]!r} is no {'number' if kind == 'number' else 'JSON'}"
        ) from wrong
    if kind == "number" and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise UsageWrong(f"{field.label}: {text[:80]!r} is no number")
    if kind == "yesno" and not isinstance(value, bool):
        raise UsageWrong(f"{field.label}: it is yes or no")
    return value


def _limit(shape: Mapping[str, Any], name: str, otherwise: int) -> int:
    value = shape.get(name)
    return value if isinstance(value, int) else otherwise
