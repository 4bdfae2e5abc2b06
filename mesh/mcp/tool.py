"""A tool of an MCP server, as a `Tool`: its schema is the server's, and jsonschema checks arguments by it.

Regular expressions are for the server alone. They are written in another dialect than Python's, and one of
them can take longer over a few dozen letters than any turn lasts, while nothing else runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from mesh.agent.errors import ToolArgumentsInvalid
from mesh.agent.tools import KEY, Tool, few, short
from mesh.mcp.results import McpUnusable

_UNIONS = ("anyOf", "oneOf", "allOf")
_NEVER_STRICTER = ("not", "disallow", "if", "contains", "unevaluatedItems", "unevaluatedProperties")
"""Keywords by which something fails because something else fits: beside patterns, for the server to judge."""


@dataclass(frozen=True, kw_only=True)
class McpTool(Tool):
    """Made by `McpServer.tools`. Calling it calls the server."""

    input_schema: dict[str, Any] = field(hash=False)
    """As the server says it: a JSON Schema of an object."""
    remote: str
    """The server's own name for it."""

    @cached_property
    def takes_key(self) -> bool:
        """Whether the server has a parameter for the idempotency key, and an admin said that it means it."""
        return self.effect == "idempotent" and KEY in self.input_schema.get("properties", ())

    @cached_property
    def schema(self) -> dict[str, Any]:
        """What a model is told: no union at the top, which the vendor refuses; it is told in words."""
        told = {word: says for word, says in self._whole.items() if word not in _UNIONS}
        if told.keys() == self._whole.keys():
            return told
        unions = {word: self._whole[word] for word in _UNIONS if word in self._whole}
        words = [str(told.get("description", "")), f"Has to fit, too: {msgspec.json.encode(unions).decode()}"]
        return told | {"properties": told.get("properties", {}), "description": " ".join(filter(None, words))}

    @cached_property
    def _whole(self) -> dict[str, Any]:
        if not self.takes_key:
            return self.input_schema
        rest = {name: of for name, of in self.input_schema["properties"].items() if name != KEY}
        required = [name for name in self.input_schema.get("required", ()) if name != KEY]
        return self.input_schema | {"properties": rest, "required": required}

    def require_sense(self) -> None:
        """Raise McpUnusable if no call could be checked by the schema."""
        from jsonschema import SchemaError  # type: ignore[import-untyped]  # it ships none

        if self.input_schema.get("type") != "object":
            raise McpUnusable(f"the arguments of {self.remote} are no object")
        try:
            self._validator  # noqa: B018
        except SchemaError as wrong:
            raise McpUnusable(f"the schema of {self.remote} is none: {short(wrong.message)}") from wrong

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments. Raises ToolArgumentsInvalid; McpUnusable for a schema that cannot be used."""
        given = dict(arguments)
        try:
            wrong = sorted(self._validator.iter_errors(given), key=lambda error: error.json_path)
        except Exception as unusable:  # whatever a stranger's reference can bring about
            raise McpUnusable(
                f"the schema of {self.remote} cannot be used: {type(unusable).__name__}"
            ) from unusable
        if wrong:
            raise ToolArgumentsInvalid(
                self.name, few([f"{error.json_path}: {error.message}" for error in wrong])
            )
        return given

    @cached_property
    def _validator(self) -> Any:
        """Nothing that the schema refers to is ever fetched. Raises SchemaError."""
        # Slow to import, and an agent's module is imported for less than a call.
        from jsonschema import FormatChecker
        from jsonschema.validators import Draft202012Validator, validator_for  # type: ignore[import-untyped]
        from referencing import Registry

        schema = self._whole
        kind = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema, format_checker=FormatChecker(formats=()))
        if _has_patterns(schema):
            kind = _without_patterns(kind)
            # With its dialect's name, a reference to the whole would be followed by that dialect's own class.
            schema = {word: says for word, says in schema.items() if word != "$schema"}
        return kind(schema, registry=Registry())


def _has_patterns(node: Any) -> bool:
    """Say whether a schema may have patterns; `pattern` is also what a parameter can be called."""
    if isinstance(node, list):
        return any(map(_has_patterns, node))
    if not isinstance(node, dict):
        return False
    here = isinstance(node.get("pattern"), str) or "patternProperties" in node
    return here or any(map(_has_patterns, node.values()))


def _without_patterns(kind: Any) -> Any:
    """Return a kind of validator that takes every pattern for matched, and what it cannot tell for right."""
    from jsonschema.validators import extend

    def nothing(*_: Any) -> tuple[()]:
        return ()

    def additional(validator: Any, says: Any, instance: Any, schema: Any) -> Any:
        named = "patternProperties" not in schema
        return kind.VALIDATORS["additionalProperties"](validator, says, instance, schema) if named else ()

    changed = dict.fromkeys(("pattern", "patternProperties", *_NEVER_STRICTER), nothing)
    return extend(
        kind,
        {**changed, "additionalProperties": additional, "oneOf": kind.VALIDATORS.get("anyOf", nothing)},
    )
