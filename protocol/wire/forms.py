"""Forms: what facts have to be, in a part of JSON Schema that is judged without surprise.

A form describes a handoff's facts as one object. It is read as msgspec types, which judge strictly, in time
that the values bound: no pattern, no reference outside the form, no recursion. Any other keyword is a mistake
of the form, so that it says nothing that is not checked. Words for people (`title`, `format`, …) are skipped.
"""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Union

import msgspec

from protocol.wire.errors import Malformed

MOST_FORM_BYTES = 4_096
"""Limit of a form as JSON: each verdict on its edge records it."""
_FOR_PEOPLE = frozenset(
    ("title", "description", "default", "examples", "format", "deprecated", "readOnly", "writeOnly")
) | {"$schema", "$id", "$comment", "$defs"}
_LIMITS = {
    "string": {"minLength": "min_length", "maxLength": "max_length"},
    "array": {"minItems": "min_length", "maxItems": "max_length"},
    "integer": {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"},
    "number": {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"},
}
"""By type: keywords of a limit, and msgspec's names of them."""
_TYPES: Mapping[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}
_REFERENCE = "#/$defs/"
_NOTED = re.compile(r"(?P<what>.*) - at `\$\[0\](?P<path>.*)`", re.DOTALL)
_QUOTED = re.compile(r"(?P<what>Invalid enum value|Object contains unknown field) .*", re.DOTALL)
"""What quotes the value: an enum's, or the name of a field within it."""
_UNREADABLE = (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError, SystemError)
"""What msgspec raises for schemas and types that it cannot have."""


class FormInvalid(Malformed):
    """A form that cannot be judged by; the text names the place and the mistake."""

    code = "protocol.form_invalid"


class Form(NamedTuple):
    """A form that was read."""

    fields: Mapping[str, Any]
    """The type of each fact that it names."""
    required: tuple[str, ...]

    def mistakes(self, facts: Mapping[str, Any], hidden: Collection[str] = ()) -> list[str]:
        """Return each mistake in facts, in the order of their keys, without a value.

        Args:
            hidden: keys of facts that go along and that the giver may not see; they are taken to fit.
        """
        found = [f"{key}: is missing" for key in self.required if key not in facts and key not in hidden]
        for key, kind in self.fields.items():
            if key in facts and (wrong := _mistake(facts[key], kind)):
                found.append(f"{key}{wrong}")
        return sorted(found)


def read_form(schema: Mapping[str, Any]) -> Form:
    """Return a form from its schema. Raises FormInvalid."""
    try:
        body = msgspec.json.encode(schema, order="deterministic")
    except _UNREADABLE as wrong:
        raise FormInvalid("it is no JSON") from wrong
    if len(body) > MOST_FORM_BYTES:
        raise FormInvalid(f"it has {len(body)} bytes of at most {MOST_FORM_BYTES}")
    try:
        return _read(body)
    except RecursionError as wrong:
        raise FormInvalid("it is nested too deeply") from wrong


@lru_cache(256)
def _read(body: bytes) -> Form:
    schema: Mapping[str, Any] = msgspec.json.decode(body)
    reader = _Reader(schema.get("$defs", {}))
    top = {**schema}
    if "additionalProperties" in top:
        raise FormInvalid("additionalProperties: other facts may always go along; say `drop` in the move")
    if top.pop("type", "object") != "object":
        raise FormInvalid("type: a form is an object, whose properties are facts")
    properties = reader.mapping(top.pop("properties", {}), "properties")
    required = reader.names(top.pop("required", ()), "required")
    reader.require_known(top, "", ())
    fields = {key: reader.type_of(each, f"properties.{key}", ()) for key, each in properties.items()}
    return Form(fields, required)


def _mistake(value: Any, kind: Any) -> str:
    """Return what is wrong with a value, beginning with its place within; empty if it fits."""
    try:
        msgspec.convert([value], list[kind])  # in a list, so that there always is a place
    except msgspec.ValidationError as wrong:
        found = _NOTED.fullmatch(str(wrong))
        assert found is not None
        what = _QUOTED.sub(r"\g<what> '…'", found["what"])
        return f"{found['path']}: {what[:1].lower()}{what[1:]}"
    return ""


class _Reader:
    """Reads the parts of a schema as msgspec types.

    Args:
        definitions: what references may name.
    """

    def __init__(self, definitions: Any) -> None:
        self._definitions = self.mapping(definitions, "$defs")
        self._made: dict[str, Any] = {}
        """Types of definitions: each is made once, or few that refer to each other would become many."""

    def type_of(self, schema: Any, where: str, within: tuple[str, ...]) -> Any:
        """Return the type that a schema describes.

        Args:
            where: its place in the form.
            within: the definitions that it is part of.
        """
        if schema is True:
            return Any
        rest = dict(self.mapping(schema, where))
        if "$ref" in rest:
            return self._referred(rest.pop("$ref"), rest, where, within)
        for name in ("anyOf", "oneOf", "allOf"):
            if name in rest:
                return self._combined(name, rest.pop(name), rest, where, within)
        if "enum" in rest or "const" in rest:
            allowed = rest.pop("enum") if "enum" in rest else [rest.pop("const")]
            rest.pop("type", None)
            self.require_known(rest, where, ())
            return self._one_of(allowed, where)
        kinds = rest.pop("type", None)
        if kinds is None:
            self.require_known(rest, where, ())
            return Any
        if isinstance(kinds, list):
            if not kinds:
                raise FormInvalid(f"{where}.type: no such type")
            return self._union([self._of_type(each, rest, where, within) for each in kinds], where)
        return self._checked(self._of_type(kinds, rest, where, within), where)

    def _of_type(self, kind: Any, rest: dict[str, Any], where: str, within: tuple[str, ...]) -> Any:
        limits = _LIMITS.get(kind, {}) if isinstance(kind, str) else {}
        given = {limits[name]: value for name, value in rest.items() if name in limits}
        if kind == "object":
            return self._object(rest, where, within)
        self.require_known(rest, where, (*limits, *(("items",) if kind == "array" else ())))
        if kind == "array":
            found: Any = list[self.type_of(rest.get("items", True), f"{where}.items", within)]  # type: ignore[misc]
        elif isinstance(kind, str) and kind in _TYPES:
            found = _TYPES[kind]
        else:
            raise FormInvalid(f"{where}.type: no such type")
        return self._limited(found, given, where) if given else found

    def _object(self, rest: dict[str, Any], where: str, within: tuple[str, ...]) -> Any:
        self.require_known(rest, where, ("properties", "required", "additionalProperties"))
        properties = self.mapping(rest.get("properties", {}), f"{where}.properties")
        required = self.names(rest.get("required", ()), f"{where}.required")
        more = rest.get("additionalProperties", True)
        if not properties and not required and more is not False:
            return dict[str, self.type_of(more, f"{where}.additionalProperties", within)]  # type: ignore[misc]
        if not isinstance(more, bool):
            raise FormInvalid(f"{where}.additionalProperties: true or false, beside properties")
        fields: list[Any] = []
        names: dict[str, str] = {}
        for n, key in enumerate(dict.fromkeys((*properties, *required))):
            kind = self.type_of(properties.get(key, True), f"{where}.properties.{key}", within)
            names[f"field_{n}"] = key
            maybe: Any = Union[kind, msgspec.UnsetType]  # noqa: UP007 - of a value
            optional = (f"field_{n}", maybe, msgspec.UNSET)
            fields.append((f"field_{n}", kind) if key in required else optional)
        try:
            return msgspec.defstruct(
                "Object", fields, kw_only=True, rename=names, forbid_unknown_fields=not more
            )
        except ValueError as wrong:  # the name of a field
            raise FormInvalid(f"{where}: {_first_line(wrong)}") from wrong

    def _referred(self, name: Any, rest: dict[str, Any], where: str, within: tuple[str, ...]) -> Any:
        self.require_known(rest, where, ())
        key = name.removeprefix(_REFERENCE) if isinstance(name, str) else ""
        if not isinstance(name, str) or not name.startswith(_REFERENCE) or key not in self._definitions:
            raise FormInvalid(f"{where}.$ref: it names nothing below `$defs`")
        if key in within:
            raise FormInvalid(f"{where}.$ref: {key} refers to itself")
        if key not in self._made:
            self._made[key] = self.type_of(self._definitions[key], where, (*within, key))
        return self._made[key]

    def _combined(
        self, name: str, parts: Any, rest: dict[str, Any], where: str, within: tuple[str, ...]
    ) -> Any:
        self.require_known(rest, where, ())
        if not isinstance(parts, list) or not parts or (name == "allOf" and len(parts) > 1):
            raise FormInvalid(f"{where}.{name}: a list of schemas, of `allOf` one")
        return self._union([self.type_of(each, f"{where}.{name}", within) for each in parts], where)

    def _union(self, kinds: list[Any], where: str) -> Any:
        return self._checked(Union[tuple(kinds)], where)  # noqa: UP007 - made of a list

    def _one_of(self, allowed: Any, where: str) -> Any:
        if not isinstance(allowed, list) or not allowed:
            raise FormInvalid(f"{where}.enum: a list of values")
        if not all(type(each) in (str, int, type(None)) for each in allowed):
            raise FormInvalid(f"{where}.enum: texts, whole numbers and null are judged")
        return self._checked(Literal[tuple(allowed)], where)

    def _limited(self, kind: Any, limits: Mapping[str, Any], where: str) -> Any:
        try:
            return self._checked(Annotated[kind, msgspec.Meta(**limits)], where)
        except _UNREADABLE as wrong:
            raise FormInvalid(f"{where}: {_first_line(wrong)}") from wrong

    def _checked(self, kind: Any, where: str) -> Any:
        """Return a type that msgspec can judge by. Raises FormInvalid, such as for a union of two objects."""
        try:
            msgspec.json.Decoder(kind)
        except _UNREADABLE as wrong:
            raise FormInvalid(f"{where}: {_first_line(wrong)}") from wrong
        return kind

    def mapping(self, given: Any, where: str) -> Mapping[str, Any]:
        if not isinstance(given, Mapping):
            raise FormInvalid(f"{where}: a table")
        return given

    def names(self, given: Any, where: str) -> tuple[str, ...]:
        if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
            raise FormInvalid(f"{where}: a list of names")
        return tuple(given)

    def require_known(self, schema: Mapping[str, Any], where: str, known: tuple[str, ...]) -> None:
        """Raise FormInvalid for a keyword that is not judged here."""
        for name in schema:
            if name not in _FOR_PEOPLE and name not in known:
                raise FormInvalid(f"{f'{where}.' if where else ''}{name}: guards do not judge by it")


def _first_line(wrong: Exception) -> str:
    return str(wrong).partition("\n")[0]
