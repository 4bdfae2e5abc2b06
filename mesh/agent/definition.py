"""An agent: a plain async function from a turn to a move, with what others may know about it."""

import importlib
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.errors import MeshError
from protocol.wire.ids import is_name

if TYPE_CHECKING:
    from mesh.agent._toolbox import Toolbox
    from mesh.agent.tools import Tool
    from mesh.agent.turn import Turn
    from protocol.wire.commands import Move

    Handler = Callable[[Turn], Awaitable[Move]]


VERSION_GRACE_S = 30.0


class AgentNotFound(MeshError):
    """`MODULE:NAME` leads to no agent."""

    code = "agent.not_found"


@dataclass(frozen=True)
class Agent:
    """A handler and its card. Call it with a turn to run the handler."""

    name: str
    handler: "Handler"
    version: str = "0"
    description: str = ""
    prompt_version: str = ""
    model: str = ""
    """Id of the model that it is pinned to; empty for an agent without one."""
    script: Path | None = None
    """Rules that stand in for that model where there is no key."""
    tools: "tuple[Tool | Toolbox, ...]" = ()
    concurrency: int = 8
    """Turns that one process works on at once."""
    version_grace_s: float = VERSION_GRACE_S
    """How long a turn that another version began is left to an instance of that version."""
    prepare: "Callable[[], Awaitable[None]] | None" = None
    """Awaited before a process takes its first turn: loads what would hold up that turn, and all others."""

    async def __call__(self, turn: "Turn") -> "Move":
        return await self.handler(turn)


def agent(
    *,
    name: str | None = None,
    version: str = "0",
    description: str = "",
    prompt_version: str = "",
    tools: "Sequence[Tool | Toolbox]" = (),
    concurrency: int = 8,
    version_grace_s: float = VERSION_GRACE_S,
) -> "Callable[[Handler], Agent]":
    """Make an async function an agent.

    Args:
        name: as in the fleet file; the function's own name by default, or its module's where the
            function is called `agent`.
        version, prompt_version: for the card; a turn that is journaled is bound to `version`.
        concurrency: turns that one process works on at once.
        version_grace_s: how long a turn that another version began is left to an instance of that version;
            then this one goes on with it, and replays what the other recorded.

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
        )

    return make


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0]


def default_name(handler: Any) -> str:
    """Return the name of an agent that names none."""
    own = str(getattr(handler, "__name__", "agent"))
    chosen = handler.__module__.rpartition(".")[2] if own == "agent" else own
    return chosen.replace("_", "-")


def checked_name(name: str) -> str:
    if not is_name(name):
        raise ValueError(f"not an agent's name: {name!r}; 1 to 24 of a-z 0-9 -")
    return name


def load(reference: str) -> Agent:
    """Return the agent at `MODULE:NAME`, or `MODULE` for one called `agent`; a function will do.

    The working directory is searched first, as Python itself does for a script. Raises AgentNotFound.
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
    if found is None or found is agent:  # a module that makes agents has mostly imported the decorator
        has = "" if found is agent else f" has no {attribute or 'agent'!r};"
        raise AgentNotFound(f"{module_name}{has or ':'} {_agents_in(module_name, vars(module))}")
    if callable(found):
        return agent()(found)
    raise AgentNotFound(f"{reference!r} is neither an agent nor an async function")


def _agents_in(module_name: str, names: Mapping[str, object]) -> str:
    """Return by which references a module's agents are to be had."""
    found = [f"{module_name}:{name}" for name, each in names.items() if isinstance(each, Agent)]
    return f"say which agent, MODULE:NAME: {', '.join(found)}" if found else "there is no agent in it"


_key_will_do: ContextVar[bool] = ContextVar("key_will_do", default=False)


@contextmanager
def key_will_do() -> Iterator[None]:
    """Let a vendor's key in the environment be enough, in this block, to ask the real models, for money.

    It stands here for agents without a model: to serve one loads nothing of `mesh.model`.
    """
    token = _key_will_do.set(True)
    try:
        yield
    finally:
        _key_will_do.reset(token)


def a_key_will_do() -> bool:
    """Return True inside of `key_will_do`."""
    return _key_will_do.get()
