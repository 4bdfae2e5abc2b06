"""An agent: a plain async function from a turn to a move, with its tools and its card.

Some tools are known only at run time, such as those of an MCP server. Among an agent's tools a `Toolbox`
stands for them. It is opened before the agent takes turns, so that its card and its model's prompts name the
same tools, and closed when the agent leaves.
"""

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mesh.agent.errors import Retry, ToolsUnusable, failure_of
from mesh.agent.hooks import Hooks, watching
from mesh.agent.tools import NAME_SYNTAX, Tool, is_tool_name
from mesh.agent.values import short
from mesh.errors import MeshError
from mesh.service.conditions import Conditions, Kind
from mesh.service.logs import get_logger
from protocol.wire.ids import NAME_RULE, is_name

if TYPE_CHECKING:
    from mesh.agent.turn import Turn
    from protocol.wire.moves import Move

    Handler = Callable[[Turn], Awaitable[Move]]


_log = get_logger(__name__)

VERSION_GRACE_S = 30.0
AGAIN_S = 5.0
"""Pause between two attempts to open a toolbox (s)."""
DOWN = Kind("tools_missing", "tools_found", "the tools of {} are not there", lasts=True)


@runtime_checkable
class Toolbox(Protocol):
    """A source of tools that are known only at run time."""

    name: str

    async def tools(self) -> tuple[Tool, ...]:
        """Return the tools, the same as long as the process lives. Raises Retry, Permanent."""
        ...

    async def close(self) -> None:
        """Release what was opened. Idempotent; a later use opens it again."""
        ...


class AgentNotFound(MeshError, code="agent.not_found"):
    """`MODULE:NAME` names no agent."""


@dataclass(frozen=True)
class Agent:
    """A handler and its card. Call it with a turn to run the handler with the results of the turn's tasks."""

    name: str
    handler: "Handler"
    version: str = "0"
    description: str = ""
    prompt_version: str = ""
    model: str = ""
    """Id of the model that it always uses; empty if it names none."""
    own_model: bool = False
    """True for a custom model that costs nothing: it needs no key, and replies by itself."""
    script: Path | None = None
    """Rules that replace the model where there is no key."""
    tools: "tuple[Tool | Toolbox, ...]" = ()
    concurrency: int = 8
    """Turns that one process works on at once."""
    version_grace_s: float = VERSION_GRACE_S
    """How long a turn that another version began is left to an instance of that version (s)."""
    hooks: Hooks | None = None
    """Functions that watch its rounds."""
    prepare: "Callable[[], Awaitable[None]] | None" = None
    """Awaited before a process takes its first turn: loads what would delay that turn, and all others."""

    async def __call__(self, turn: "Turn") -> "Move":
        from mesh.agent._rounds import Returned  # a definition alone does not load the runtime

        tasks = turn.execution.tasks
        await tasks.catch_up()
        with watching(self.hooks, turn) as moved:
            try:
                move = await self.handler(turn)
            except Returned as returned:
                move = returned.move
            await tasks.pass_on(move)
            moved(move)
        return move


def agent(
    *,
    name: str | None = None,
    version: str = "0",
    description: str = "",
    prompt_version: str = "",
    tools: "Sequence[Tool | Toolbox]" = (),
    concurrency: int = 8,
    version_grace_s: float = VERSION_GRACE_S,
    hooks: Hooks | None = None,
) -> "Callable[[Handler], Agent]":
    """Make an async function an agent.

    Args:
        name: as in the fleet file; by default the function's own name, or its module's if the function is
            called `agent`.
        version, prompt_version: for the card; a journaled turn is bound to `version`.
        concurrency: turns that one process works on at once.
        version_grace_s: how long a turn that another version began is left to an instance of that version;
            then this one continues it, and replays what the other recorded.
        hooks: functions that watch its rounds.

    Raises ValueError for a name that cannot be one.
    """
    named = None if name is None else checked_name(name)

    def make(handler: "Handler") -> Agent:
        return Agent(
            name=named or checked_name(default_name(handler)),
            handler=handler,
            version=version,
            description=description or _first_line(handler.__doc__),
            prompt_version=prompt_version,
            tools=tuple(tools),
            concurrency=concurrency,
            version_grace_s=version_grace_s,
            hooks=hooks,
        )

    return make


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0]


def default_name(handler: Any) -> str:
    """Return the name of an agent that has no explicit one."""
    own = str(getattr(handler, "__name__", "agent"))
    chosen = handler.__module__.rpartition(".")[2] if own == "agent" else own
    return chosen.replace("_", "-")


def checked_name(name: str) -> str:
    if not is_name(name):
        raise ValueError(f"not an agent's name: {name!r}; {NAME_RULE}")
    return name


def load(reference: str) -> Agent:
    """Return the agent at `MODULE:NAME`, or `MODULE` if it is called `agent`; a function is accepted, too.

    The working directory is searched first, as Python does for a script. Raises AgentNotFound.
    """
    module_name, _, attribute = reference.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        raise AgentNotFound(f"no module {missing.name!r} (for {reference!r})") from missing
    found = getattr(module, attribute or "agent", None)
    if isinstance(found, Agent):
        return found
    if found is None or found is agent:  # a module that defines agents usually imports the decorator
        has = "" if found is agent else f" has no {attribute or 'agent'!r};"
        raise AgentNotFound(f"{module_name}{has or ':'} {_agents_in(module_name, vars(module))}")
    if callable(found):
        return agent()(found)
    raise AgentNotFound(f"{reference!r} is neither an agent nor an async function")


def _agents_in(module_name: str, names: Mapping[str, object]) -> str:
    """Return the references of a module's agents."""
    found = [f"{module_name}:{name}" for name, each in names.items() if isinstance(each, Agent)]
    return f"say which agent, MODULE:NAME: {', '.join(found)}" if found else "there is no agent in it"


_key_suffices: ContextVar[bool] = ContextVar("key_suffices", default=False)


@contextmanager
def key_suffices() -> Iterator[None]:
    """Within this block, let a vendor's key in the environment suffice to ask real models, which costs money.

    It is defined here because serving an agent without a model loads nothing of `mesh.model`.
    """
    token = _key_suffices.set(True)
    try:
        yield
    finally:
        _key_suffices.reset(token)


def does_key_suffice() -> bool:
    """Return True inside `key_suffices`."""
    return _key_suffices.get()


# --- boxes of tools -------------------------------------------------------------------------------


async def unpacked(tools: Iterable[Tool | Toolbox]) -> tuple[Tool, ...]:
    """Return the tools, including those of toolboxes. Raises ToolsUnusable, and what a toolbox raises."""
    found: dict[str, Tool] = {}
    for each in tools:
        for tool in (each,) if isinstance(each, Tool) else await each.tools():
            if not is_tool_name(tool.name):
                raise ToolsUnusable(f"no model can call a tool {short(tool.name)!r}: a name is {NAME_SYNTAX}")
            if tool.name in found:
                raise ToolsUnusable(f"two tools are called {tool.name}")
            found[tool.name] = tool
    return tuple(found.values())


async def unpacked_in_time(tools: Iterable[Tool | Toolbox], conditions: Conditions) -> tuple[Tool, ...]:
    """Return the tools as `unpacked` does, waiting for toolboxes that cannot be opened yet."""
    boxes = tuple(tools)
    for box in boxes:
        if isinstance(box, Tool):
            continue
        while True:
            try:
                await box.tools()
            except Retry as down:
                conditions.raise_(DOWN, box.name, reason=str(down))
                await asyncio.sleep(AGAIN_S)
            else:
                conditions.clear(DOWN, box.name)
                break
    return await unpacked(boxes)


async def close_toolboxes(tools: Iterable[Tool | Toolbox]) -> None:
    """Close every toolbox."""
    for each in tools:
        if not isinstance(each, Tool):
            await each.close()


async def prepared(agent: Agent) -> None:
    """Let an agent load what its turns need. If that fails, the first turn reports the error itself.

    Raises ToolsUnusable if no turn could do anything with these tools.
    """
    if agent.prepare is None:
        return
    try:
        await agent.prepare()
    except ToolsUnusable:
        raise
    except Exception as error:
        code = failure_of(error).code
        _log.warning("agent_not_prepared", agent=agent.name, code=code, error=type(error).__name__)
