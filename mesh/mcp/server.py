"""An MCP server as a toolbox: an agent mounts it and gets its tools.

files = McpServer("files", command=["mcp-files", "/srv/papers"], prefix="files_", only=["read", "write"])

clerk = ClaudeAgent("clerk", instructions=…, tools=[files, look_up])

The server is started, or connected to, when it is first needed in a process, and again after it ended. It is
closed with the agent. The admin declares what a tool does to the world (`effects`). Without a declaration, a
tool only reads if the server says so. Any other tool is an effect that cannot be asked about later: `once`.

Four things can be known of a failed call: the server refused; the call never reached it; it ran the tool and
the result is unusable; or nothing. If a tool only reads, nothing is lost in any case. For an effect, knowing
nothing is a doubt, which the journal handles: `EffectUnknown`.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from mesh.agent.errors import EffectUnknown, ToolArgumentsInvalid
from mesh.agent.tools import KEY, NAME_SYNTAX, Approver, Effect, Tool, is_tool_name
from mesh.agent.values import few, short
from mesh.mcp.link import Ended, McpConnection, by_http, by_process
from mesh.mcp.results import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    MAX_BYTES,
    McpDown,
    McpTimedOut,
    McpUnreadable,
    McpUnusable,
    meaning_of,
    unreached,
    value_of,
)
from mesh.service.printable import one_line

if TYPE_CHECKING:
    import mcp_types
    from mcp.client import Client


TIMEOUT_S = 60.0
START_S = 30.0
MAX_NAME_CHARS = 64
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")


class McpServer:
    """A mounted MCP server. Tools are named here as the server names them, without the prefix.

    Args:
        name: for people: logs and errors.
        command: the program and its arguments, for a server that speaks over its standard streams.
        url: address of a server that speaks streamable HTTP; give this or `command`.
        env: the process's environment, besides HOME, LOGNAME, PATH, SHELL, TERM and USER. Nothing else of
            this process's is passed on: no credentials of the bus, no key of a model.
        cwd: the process's working directory.
        headers: sent with every HTTP request.
        prefix: put before each tool's name.
        only: the tools to mount; None for all.
        effects: what a tool does to the world: None (only reads), `idempotent` or `once`.
        approve: who has to approve a tool's effect: `human` or `client`.
        timeout_s: how long a call may take (s); `timeouts` for single tools.
        start_s: how long the server may take until it has listed its tools (s).
        max_bytes: limit of a result, as JSON.

    Raises ValueError for arguments that make no sense.
    """

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str | PathLike[str]] | None = None,
        url: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        headers: Mapping[str, str] | None = None,
        prefix: str = "",
        only: Iterable[str] | None = None,
        effects: Mapping[str, Effect | None] | None = None,
        approve: Mapping[str, Approver] | None = None,
        timeout_s: float = TIMEOUT_S,
        timeouts: Mapping[str, float] | None = None,
        start_s: float = START_S,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if (command is None) == (url is None) or isinstance(command, str) or command == []:
            raise ValueError(f"{name}: say either a command, as a list, or a url")
        if not 0 < len(name) <= MAX_NAME_CHARS or one_line(name) != name:
            raise ValueError(f"a server's name is one printable line of {MAX_NAME_CHARS} characters at most")
        if isinstance(only, str):
            raise ValueError(f"{name}: `only` is a list of tools")
        self.name = name
        self._command = None if command is None else tuple(fspath(each) for each in command)
        self._url = url
        self._env, self._headers = dict(env or {}), dict(headers or {})
        self._cwd = None if cwd is None else fspath(cwd)
        self._prefix = prefix
        self._only = None if only is None else frozenset(only)
        self._effects, self._approve = dict(effects or {}), dict(approve or {})
        self._timeout_s, self._timeouts = timeout_s, dict(timeouts or {})
        self._start_s, self._max_bytes = start_s, max_bytes
        self._link: McpConnection | None = None
        self._tools: tuple[Tool, ...] | None = None
        self._require_sense()

    def __repr__(self) -> str:
        return f"McpServer({self.name!r})"  # neither its environment nor its headers

    def _require_sense(self) -> None:
        for tool, effect in self._effects.items():
            if effect not in (None, "idempotent", "once"):
                raise ValueError(f"{self.name}: the effect of {tool} is None, 'idempotent' or 'once'")
        for tool, approver in self._approve.items():
            if approver not in get_args(Approver):
                raise ValueError(f"{self.name}: nobody is called {approver!r}, who is to approve {tool}")
        for limit_s in (self._timeout_s, self._start_s, *self._timeouts.values()):
            if not limit_s > 0:
                raise ValueError(f"{self.name}: a time-out is more than 0 seconds")

    # --- its tools --------------------------------------------------------------------------------

    async def tools(self) -> tuple[Tool, ...]:
        """Return its tools in order of name, as the server first listed them in this process.

        Raises McpNotInstalled, McpUnusable, McpDown.
        """
        if self._tools is None:
            self._tools = self._mounted(await self._linked().ready())
        return self._tools

    async def tool(self, name: str) -> Tool:
        """Return one tool by its full name. Raises McpUnusable if it is not mounted, or as `tools`."""
        tools = await self.tools()
        found = next((tool for tool in tools if tool.name == name), None)
        if found is None:
            there = ", ".join(tool.name for tool in tools) or "none"
            raise McpUnusable(f"{self.name} has no tool {name!r} mounted; there are: {short(there)}")
        return found

    def _mounted(self, listed: "tuple[mcp_types.Tool, ...]") -> tuple[Tool, ...]:
        there = {tool.name for tool in listed}
        meant = (self._only or frozenset()).union(self._effects, self._approve, self._timeouts)
        if missing := sorted(meant - there):
            wanted, has = short(", ".join(missing)), short(", ".join(sorted(there)))
            raise McpUnusable(f"{self.name} has no tools {wanted}; it has {has}")
        mounted: dict[str, Tool] = {}
        for tool in listed:
            if self._only is None or tool.name in self._only:
                made = self._made(tool)
                if made.name in mounted:
                    raise McpUnusable(f"{self.name} has two tools that would be called {made.name}")
                mounted[made.name] = made
        return tuple(mounted[name] for name in sorted(mounted))

    def _made(self, tool: "mcp_types.Tool") -> Tool:
        name = _NOT_IN_A_NAME.sub("_", f"{self._prefix}{tool.name}")
        if not is_tool_name(name):
            raise McpUnusable(
                f"{self.name}: a tool cannot be called {short(name)!r}: a name is {NAME_SYNTAX}"
            )
        effect, approve = self._effect_of(tool), self._approve.get(tool.name)
        if approve is not None and effect is None:
            raise McpUnusable(f"{self.name}: {tool.name} only reads, and nobody approves that")

        async def run(**arguments: Any) -> Any:
            return await self._call(made, arguments)

        made = McpTool(
            name=name,
            description=next(filter(str.strip, (tool.description or "", tool.title or "")), tool.name),
            effect=effect,
            fn=run,
            approve=approve,
            input_schema=tool.input_schema,
            remote=tool.name,
        )
        made.require_sense()
        return made

    def _effect_of(self, tool: "mcp_types.Tool") -> Effect | None:
        """Return what a tool does to the world. By a server's hint it is either `once` or only reads."""
        if tool.name in self._effects:
            return self._effects[tool.name]
        hints = tool.annotations
        return None if hints is not None and hints.read_only_hint is True else "once"

    async def _call(self, tool: "McpTool", arguments: Mapping[str, Any]) -> Any:
        """Call a tool and return its result's value. Raises the errors of `results`, and EffectUnknown."""
        name, timeout_s = tool.name, self._timeouts.get(tool.remote, self._timeout_s)
        try:
            connection = self._linked()
            await connection.ready()
        except (McpDown, McpUnusable) as down:
            if tool.effect is None:
                raise
            raise unreached(name, str(down)) from down
        from mcp.shared.exceptions import MCPError

        try:
            async with asyncio.timeout(timeout_s):
                result = await connection.call(tool.remote, dict(arguments))
        except TimeoutError as late:
            why = f"{name} did not answer within {timeout_s:g} s"
            if tool.effect is None:
                raise McpTimedOut(f"{why}; it changes nothing") from late
            raise EffectUnknown(why) from late
        except MCPError as error:
            if error.code in (CONNECTION_CLOSED, INVALID_REQUEST):
                connection.leave()
            raise meaning_of(tool, error) from error
        except RuntimeError as wrong:  # the SDK has checked it against the tool's own output schema
            raise McpUnreadable(f"{name} ran, but its result does not fit its own schema") from wrong
        except Exception as broken:
            why = f"{name} answered with what is no result"
            if tool.effect is not None:
                raise EffectUnknown(why) from broken
            raise McpUnreadable(f"{why}: {type(broken).__name__}") from broken
        return value_of(name, result, self._max_bytes)

    @property
    def is_over(self) -> bool:
        """True if there is no connection, or it has ended. The next call opens one."""
        return self._link is None or self._link.over

    # --- its connection ---------------------------------------------------------------------------

    def _linked(self) -> McpConnection:
        """Return the connection, or a new one if none belongs to this event loop.

        There is one at a time: it moves to the loop that last asked for it.
        """
        link = self._link
        if link is not None and link.loop is not asyncio.get_running_loop():
            link.leave_from_elsewhere()
            link = None
        if link is None or link.over:
            link = self._link = McpConnection(self.name, self._connect, self._start_s)
        return link

    def _connect(self, ended: Ended) -> "Client":
        if self._command is not None:
            return by_process(self.name, self._command, self._env, self._cwd, ended)
        assert self._url is not None
        return by_http(self._url, self._headers, ended)

    async def close(self) -> None:
        """Close the connection, and wait until our child process has ended. The next call opens it again."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()


# --- one tool -------------------------------------------------------------------------------------

_UNIONS = ("anyOf", "oneOf", "allOf")
_NEVER_STRICTER = ("not", "disallow", "if", "contains", "unevaluatedItems", "unevaluatedProperties")
"""Keywords that fail because something else fits: if they involve patterns, the server judges them."""


@dataclass(frozen=True, kw_only=True)
class McpTool(Tool):
    """A tool of a server: its schema is the server's, and jsonschema checks arguments by it.

    Regular expressions are left to the server. Their dialect is not Python's. A single one can also take
    longer over a few dozen letters than any turn lasts, and nothing else runs meanwhile.
    """

    input_schema: dict[str, Any] = field(hash=False)
    """As the server gives it: a JSON Schema of an object."""
    remote: str
    """The server's own name for it."""

    @cached_property
    def takes_key(self) -> bool:
        """True if the server has a parameter for the idempotency key, and an admin declared it idempotent."""
        return self.effect == "idempotent" and KEY in self.input_schema.get("properties", ())

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The schema for the model: a union at the top, which vendors refuse, is put into words."""
        shown = {word: says for word, says in self._whole.items() if word not in _UNIONS}
        if shown.keys() == self._whole.keys():
            return shown
        unions = {word: self._whole[word] for word in _UNIONS if word in self._whole}
        words = [
            str(shown.get("description", "")),
            f"Has to fit, too: {msgspec.json.encode(unions).decode()}",
        ]
        return shown | {
            "properties": shown.get("properties", {}),
            "description": " ".join(filter(None, words)),
        }

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
        """Return the arguments. Raises ToolArgumentsInvalid; McpUnusable for an unusable schema."""
        given = dict(arguments)
        try:
            wrong = sorted(self._validator.iter_errors(given), key=lambda error: error.json_path)
        except Exception as unusable:  # any error that a foreign reference can cause
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
        """The validator. It never fetches what the schema refers to. Raises SchemaError."""
        # Slow to import, and an agent's module is often imported without a call.
        from jsonschema import FormatChecker
        from jsonschema.validators import Draft202012Validator, validator_for  # type: ignore[import-untyped]
        from referencing import Registry

        schema = self._whole
        kind = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema, format_checker=FormatChecker(formats=()))
        if _has_patterns(schema):
            kind = _without_patterns(kind)
            # With `$schema`, a reference to the root would be followed by that dialect's own class.
            schema = {word: says for word, says in schema.items() if word != "$schema"}
        return kind(schema, registry=Registry())


def _has_patterns(node: Any) -> bool:
    """Return True if a schema may have patterns; a parameter can also be called `pattern`."""
    if isinstance(node, list):
        return any(map(_has_patterns, node))
    if not isinstance(node, dict):
        return False
    here = isinstance(node.get("pattern"), str) or "patternProperties" in node
    return here or any(map(_has_patterns, node.values()))


def _without_patterns(kind: Any) -> Any:
    """Return a validator class that accepts patterns, and everything that depends on them, unchecked."""
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
