"""Which model drives an agent: the environment says, nobody else.

`MESH_MODEL` is `scripted` (a file of rules) or `claude` (the vendor's SDK). Left out, it is `scripted`: a key
that happens to be there spends nothing in a test or a script. Only `mesh agent run`, which is there to do the
work, takes a key for a yes (`key_will_do`). It is read when a turn asks, not at import.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal

from mesh.agent.failures import Permanent
from mesh.model.anthropic.model import MAX_TOKENS, WORK, ClaudeModel
from mesh.model.port import Model
from mesh.model.scripted import ScriptedModel, load_script

VARIABLE = "MESH_MODEL"
KEY = "ANTHROPIC_API_KEY"

Mode = Literal["scripted", "claude"]


class ModelUnavailable(Permanent):
    """There is no such model here. Another round does not help; what the text says does."""

    code: ClassVar[str] = "model.unavailable"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{VARIABLE}={name}: {why}")
        self.name = name


def mode() -> Mode:
    """Return which kind of model is asked for, for cards and summaries. Raises ModelUnavailable."""
    match os.environ.get(VARIABLE, ""):
        case "":
            return "claude" if _key_will_do.get() and os.environ.get(KEY) and has_sdk() else "scripted"
        case "scripted":
            return "scripted"
        case "claude":
            if not has_sdk():
                raise ModelUnavailable("claude", "install handoff-mesh[claude]")
            if not os.environ.get(KEY):
                raise ModelUnavailable("claude", f"set {KEY}")
            return "claude"
        case other:
            raise ModelUnavailable(other, "there is no such model; scripted or claude")


_key_will_do: ContextVar[bool] = ContextVar("key_will_do", default=False)


@contextmanager
def key_will_do() -> Iterator[None]:
    """Let a key in the environment be enough, in this block, to ask the real models, for money."""
    token = _key_will_do.set(True)
    try:
        yield
    finally:
        _key_will_do.reset(token)


def driven_by(model: str, prompt_version: str = "") -> str:
    """Return what drives an agent, for its card: empty, `scripted`, or the pinned id.

    Args:
        model: the id that the agent is pinned to, if it is.
        prompt_version: that of its prompt; without either it has no model.

    Raises ModelUnavailable.
    """
    if not model and not prompt_version:
        return ""
    kind = mode()
    return kind if kind == "scripted" else model or kind


def has_sdk() -> bool:
    """Say whether the vendor's SDK is installed; it is not imported for that."""
    return find_spec("anthropic") is not None


def model_for(
    agent: str,
    *,
    script: Path | None = None,
    model: str = WORK,
    fallback: str | None = None,
    max_tokens: int | None = None,
) -> Model:
    """Return the model that `agent` is driven by.

    Args:
        script: the fleet's rule file, for the scripted model.
        model, fallback: ids of the vendor's models, for the others.
        max_tokens: of one reply.

    Raises ModelUnavailable, ScriptInvalid.
    """
    make = _instead.get()
    if make is not None:
        return make(model, fallback, max_tokens or MAX_TOKENS)
    match mode():
        case "scripted":
            if script is None:
                raise ModelUnavailable("scripted", _no_rules(agent))
            scripted = _scripted(script)
            scripted.require(agent)
            return scripted
        case "claude":
            return _claude(model, fallback, max_tokens or MAX_TOKENS)


def _no_rules(agent: str) -> str:
    """Return what to do about an agent without rules, where only rules may reply."""
    said = (
        "" if os.environ.get(VARIABLE) else f" ({VARIABLE} is not set, and a key alone spends nothing here)"
    )
    return (
        f"{agent} has no script{said}; give it one, put a model of yours behind it "
        f"(mesh.testing.driven_by), or set {VARIABLE}=claude and {KEY} to ask the real one"
    )


async def warm(
    agent: str,
    *,
    script: Path | None = None,
    model: str = WORK,
    fallback: str | None = None,
    max_tokens: int | None = None,
) -> None:
    """Load what `model_for` would give, in a thread: to import a vendor's SDK holds up a loop for long.

    A model may have a method `warm` for that; it is called in a thread. Raises what `model_for` raises, and
    whatever comes of the loading.
    """
    made = model_for(agent, script=script, model=model, fallback=fallback, max_tokens=max_tokens)
    await asyncio.to_thread(_load, made)


def _load(made: Model) -> None:
    load = getattr(made, "warm", None)
    if load is not None:
        load()


Make = Callable[[str, str | None, int], Model]
"""Makes a model from its id, that of its fallback, and the most tokens of a reply."""

_instead: ContextVar[Make | None] = ContextVar("instead", default=None)


@contextmanager
def instead(make: Make) -> Iterator[None]:
    """Let `make` make every model that is asked for in this block, whatever the environment says."""
    token = _instead.set(make)
    try:
        yield
    finally:
        _instead.reset(token)


@cache
def _scripted(script: Path) -> ScriptedModel:
    return ScriptedModel(load_script(script))


_made: dict[tuple[str, str | None, int], ClaudeModel] = {}
"""One of a kind for a process, and with it one pool of connections."""


def _claude(model: str, fallback: str | None, max_tokens: int) -> ClaudeModel:
    pinned = (model, fallback, max_tokens)
    if pinned not in _made:
        _made[pinned] = ClaudeModel(model, fallback=fallback, max_tokens=max_tokens)
    return _made[pinned]


async def close_models() -> None:
    """Let go of every connection to a vendor. The process's end does it too."""
    while _made:
        _, model = _made.popitem()
        await model.close()
