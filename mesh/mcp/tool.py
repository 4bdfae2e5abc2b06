"""A tool of an MCP server, as a `Tool`: its schema is the server's, and jsonschema checks arguments by it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mesh.agent.tools import KEY, Tool, ToolArgumentsInvalid
from mesh.mcp.failures import McpUnusable, short

MOST_MISTAKES = 5


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
        except Exception as unusable:  # whatever a stranger's pattern or reference can bring about
            raise McpUnusable(
                f"the schema of {self.remote} cannot be used: {type(unusable).__name__}"
            ) from unusable
        if wrong:
            mistakes = [f"{error.json_path}: {short(error.message)}" for error in wrong[:MOST_MISTAKES]]
            more = [f"and {len(wrong) - MOST_MISTAKES} more"] if len(wrong) > MOST_MISTAKES else []
            raise ToolArgumentsInvalid(self.name, (*mistakes, *more))
        return given

    @cached_property
    def _validator(self) -> Any:
        """Nothing that the schema refers to is ever fetched. Raises SchemaError."""
        # Slow to import, and an agent's module is imported for less than a call.
        from jsonschema.validators import Draft202012Validator, validator_for  # type: ignore[import-untyped]
        from referencing import Registry

        kind = validator_for(self.schema, default=Draft202012Validator)
        kind.check_schema(self.schema)
        return kind(self.schema, registry=Registry())
