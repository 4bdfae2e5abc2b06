"""A form for a question's JSON Schema, and the value that a filled one stands for.

Fields are made for what a browser has fields for: text, numbers, yes or no, a choice, a list of these, an
object of them. For anything else there is one field for JSON. The schema is an agent's text, so that nothing
here follows a reference or trusts a type; whether the value fits is judged afterwards, by the whole schema.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from mesh.errors import UsageWrong
from mesh.service.printable import short

Kind = Literal["text", "number", "yesno", "choice", "lines", "json", "object"]
MOST_FIELDS = 60
_DEEPEST = 3
_LONG = 80
"""Characters from which on a text gets several lines."""
_NOTHING = object()


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a form, or an object with fields of its own."""

    name: str
    """In the form: places, not the schema's names, which may be any text."""
    key: str
    """In the object that it is a part of; empty for the whole value."""
    kind: Kind
    label: str
    help: str = ""
    required: bool = True
    value: str = ""
    """What stands in it first."""
    choices: tuple[str, ...] = ()
    """JSON of each."""
    is_long: bool = False
    least: float | None = None
    most: float | None = None
    item: Kind | None = None
    """Of lines: what each one is."""
    fields: tuple["Field", ...] = ()


def field_for(
    schema: Any, name: str = "value", key: str = "", *, required: bool = True, depth: int = 0
) -> Field:
    """Return the field, or the fields, for a value that a schema describes; None describes any text."""
    said: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    kind = "text" if schema is None else _kind(said, depth)
    described: dict[str, Any] = {
        "name": name,
        "key": key,
        "label": short(str(said.get("title") or key or "Reply"), _LONG),
        "help": short(str(said.get("description") or ""), 300),
        "required": required,
    }
    default = said.get("default", _NOTHING)
    if kind == "object":
        wanted = said.get("required")
        names = wanted if isinstance(wanted, list) else []
        fields = tuple(
            field_for(each, f"{name}.{place}", inner, required=required and inner in names, depth=depth + 1)
            for place, (inner, each) in enumerate(said["properties"].items())
        )
        return Field(kind="object", fields=fields, **described)
    if kind == "choice":
        options = [said["const"]] if "const" in said else said["enum"]
        first = "" if default is _NOTHING else _json(default)
        return Field(kind=kind, choices=tuple(_json(each) for each in options), value=first, **described)
    if kind == "lines":
        items = said.get("items")
        item = "text" if items is None else _kind(items if isinstance(items, Mapping) else {}, _DEEPEST)
        text = "\n".join(map(_text, default)) if isinstance(default, list) else ""
        return Field(kind=kind, item=item, value=text, is_long=True, **described)
    return Field(
        kind=kind,
        value="" if default is _NOTHING else _json(default) if kind == "json" else _text(default),
        is_long=kind == "json" or (kind == "text" and _limit(said, "maxLength", _LONG + 1) > _LONG),
        least=said.get("minimum") if isinstance(said.get("minimum"), int | float) else None,
        most=said.get("maximum") if isinstance(said.get("maximum"), int | float) else None,
        **described,
    )


def _kind(said: Mapping[str, Any], depth: int) -> Kind:
    """Return what kind of field a schema gets; `json` for what no field is made for."""
    if "const" in said or (isinstance(said.get("enum"), list) and 0 < len(said["enum"]) <= MOST_FIELDS):
        return "choice"
    properties, items = said.get("properties"), said.get("items")
    match said.get("type"):
        case "string":
            return "text"
        case "integer" | "number":
            return "number"
        case "boolean":
            return "yesno"
        case "array" if isinstance(items, Mapping) and _kind(items, _DEEPEST) in ("text", "number"):
            return "lines"
        case "object" if isinstance(properties, Mapping) and depth < _DEEPEST and _few(said):
            return "object"
    return "json"


def _few(said: Mapping[str, Any]) -> bool:
    """Return True if an object has so few parts, its inner ones included, that each can have a field."""
    count, nodes = 0, [said]
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
    """Return the value that a filled form stands for. Raises UsageWrong for what is no such value."""
    value = _value(form, field)
    return {} if value is _NOTHING and field.kind == "object" else "" if value is _NOTHING else value


def _value(form: Mapping[str, str], field: Field) -> Any:
    if field.kind == "object":
        parts = {each.key: _value(form, each) for each in field.fields}
        said = {key: value for key, value in parts.items() if value is not _NOTHING}
        return said if said or field.required else _NOTHING
    text = form.get(field.name, "").replace("\r\n", "\n")
    if not text.strip():
        if field.required and field.kind in ("text", "lines"):
            return "" if field.kind == "text" else []
        return _missing(field)
    if field.kind == "lines":
        return [_read(field, line, field.item or "text") for line in text.split("\n") if line.strip()]
    return _read(field, text, field.kind)


def _missing(field: Field) -> Any:
    if field.required:
        raise UsageWrong(f"{field.label}: nothing was said")
    return _NOTHING


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


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _limit(said: Mapping[str, Any], name: str, otherwise: int) -> int:
    value = said.get(name)
    return value if isinstance(value, int) else otherwise
