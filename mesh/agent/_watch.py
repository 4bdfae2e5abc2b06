"""What a round tells to a watcher: each call of a tool or a model that was really made, once it is over."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from mesh.agent.tools import Tool


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A call of a tool."""

    name: str
    arguments: Mapping[str, Any]
    """Without those that the tool keeps secret."""
    result: Any
    """None if it failed."""
    error: BaseException | None
    """What it raised, such as `ToolError`; None if it returned."""
    seconds: float


@dataclass(frozen=True, slots=True)
class CalledModel:
    """A call of a model."""

    name: str
    prompt: Any
    """As the code gave it; a `mesh.model.Prompt` for a model that drives an agent."""
    reply: Any
    """None if it failed. A `mesh.model.Reply` has its cost in `usage`."""
    error: BaseException | None
    """What it raised, such as `Throttled`; None if it replied."""
    seconds: float


class Watcher(Protocol):
    """Is told of calls. It never raises, and makes what it is told only if it needs it."""

    def on_tool(self, make: Callable[[], CalledTool]) -> None: ...

    def on_model(self, make: Callable[[], CalledModel]) -> None: ...


Tell = Callable[[Any, BaseException | None, float], None]
"""Gets a call's value, its error and its duration (s)."""


def of_tool(watcher: Watcher | None, tool: Tool, arguments: Mapping[str, Any]) -> Tell | None:
    """Return what tells a watcher of a call of a tool, by copies."""
    if watcher is None:
        return None
    shown = {name: value for name, value in arguments.items() if name not in tool.secret}

    def tell(value: Any, error: BaseException | None, seconds: float) -> None:
        watcher.on_tool(lambda: CalledTool(tool.name, *deepcopy((shown, value)), error, seconds))

    return tell


def of_model(watcher: Watcher | None, name: str, prompt: Any, kind: type) -> Tell | None:
    """Return what tells a watcher of a call of a model, by copies.

    Args:
        kind: the type of the reply.
    """
    if watcher is None:
        return None

    def tell(value: Any, error: BaseException | None, seconds: float) -> None:
        def called() -> CalledModel:
            reply = msgspec.convert(deepcopy(value), kind) if error is None else None
            return CalledModel(name, deepcopy(prompt), reply, error, seconds)

        watcher.on_model(called)

    return tell


class Kept:
    """Keeps a call's value for the watcher."""

    value: Any = None

    def keep(self, value: Any) -> Any:
        self.value = value
        return value


@contextmanager
def timed(tell: Tell | None) -> Iterator[Kept]:
    """Tell of the call that is made in this block, whether it returns or raises; not of a cancelled one."""
    kept, began = Kept(), time.perf_counter()
    try:
        yield kept
    except Exception as error:
        if tell is not None:
            tell(None, error, time.perf_counter() - began)
        raise
    if tell is not None:
        tell(kept.value, None, time.perf_counter() - began)
