"""Which model drives an agent: a file of rules, a vendor's model, or a custom one.

`MESH_MODEL` decides: `scripted` (a file of rules), the name of the vendor whose models may be asked, or
`pinned`: each agent's own vendor. Without it the model is `scripted`, so a key in the environment is not used
in a test or a script. Only `mesh agent run` lets a key suffice (`definition.key_suffices`). A custom model
that costs nothing replies itself, unless the value is `scripted` and the agent has rules. The environment is
read when a turn asks, not at import.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from mesh.agent.definition import Agent, does_key_suffice
from mesh.agent.errors import Permanent
from mesh.model.port import Model
from mesh.model.scripted import ScriptedModel, load_script
from mesh.model.vendor import MAX_TOKENS, VendorModel
from mesh.model.vendors import VENDORS, WORK, pinned

VARIABLE = "MESH_MODEL"
SCRIPTED, PINNED, OWN = "scripted", "pinned", "own"
MODES = (SCRIPTED, *VENDORS, PINNED)
"""Values of `MESH_MODEL`."""


class ModelUnavailable(Permanent, code="model.unavailable"):
    """There is no such model here. Another round does not help; the text says what to do."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{VARIABLE}={name}: {why}")
        self.name = name


def mode(asked: str | None = None, model: str = "", *, own: bool = False, rules: bool = True) -> str:
    """Return who replies if `asked`, or else the environment, has this value. Raises ModelUnavailable.

    It is `SCRIPTED`, `OWN`, or a vendor's name.

    Args:
        model: the id that the agent is pinned to; the default vendor is asked for any other agent.
        own: True for a custom model that costs nothing.
        rules: True if there are rules to replace it.
        rules: True if there are any to stand in for it.
    """
    vendor = pinned(model)[0]
    match os.environ.get(VARIABLE, "") if asked is None else asked:
        case "":
            if own:
                return OWN
            may_ask = does_key_suffice() and vendor.is_open() and vendor.is_installed()
            return vendor.vendor if may_ask else SCRIPTED
        case "scripted":
            return OWN if own and not rules else SCRIPTED
        case name if name in MODES:
            if own:
                return OWN
            if model and name not in (PINNED, vendor.vendor):
                own_ones = f"say {VARIABLE}={vendor.vendor}, or {PINNED} where agents have different vendors"
                raise ModelUnavailable(name, f"{model} is another vendor's: {own_ones}")
            open_ones = (each for each in VENDORS.values() if each.is_open())
            wanted = vendor if model else VENDORS.get(name) or next(open_ones, vendor)
            if not wanted.is_installed():
                raise ModelUnavailable(name, f"install handoff-mesh[{wanted.extra}]")
            if not wanted.is_open():
                raise ModelUnavailable(name, f"set {' or '.join(wanted.opened_by)}")
            return wanted.vendor
        case other:
            *most, last = MODES
            raise ModelUnavailable(other, f"there is no such model; {', '.join(most)} or {last}")


def driven_by(agent: Agent) -> str:
    """Return what drives an agent, for its card: empty, `scripted`, or its model's id at the vendor.

    It is empty for an agent without a model or a prompt, and for an agent whose code alone knows its model.
    Raises ModelUnavailable.
    """
    if not agent.model and not agent.prompt_version:
        return ""
    kind = mode(model=agent.model, own=agent.own_model, rules=agent.script is not None)
    return kind if kind == SCRIPTED else pinned(agent.model)[1]


def model_for(
    agent: str,
    *,
    script: Path | None = None,
    model: str | Model = WORK,
    fallback: str | None = None,
    max_tokens: int | None = None,
) -> Model:
    """Return the model that drives `agent`.

    Args:
        script: the fleet's rule file, for the scripted model.
        model, fallback: as `ClaudeAgent` has them.
        max_tokens: limit of one reply.

    Raises ModelUnavailable, ScriptInvalid.
    """
    own = model if isinstance(model, Model) else None
    make, most = _instead.get(), max_tokens or MAX_TOKENS
    if make is not None:
        return make(model, fallback, most)
    free = own is not None and not own.is_billed
    kind = mode(model=id_of(model), own=free, rules=script is not None)
    if kind != SCRIPTED:
        return own or shared(id_of(model), fallback, most)
    if script is None:
        unset = f" ({VARIABLE} is not set, and a key alone spends nothing here)"
        vendor = pinned(id_of(model))[0]
        raise ModelUnavailable(
            SCRIPTED,
            f"{agent} has no script{'' if os.environ.get(VARIABLE) else unset}; give it one, put a model of "
            "yours behind it (mesh.testing.driven_by), "
            f"or set {VARIABLE}={vendor.vendor} and {vendor.opened_by[0]} to ask the real one",
        )
    scripted = _scripted(script)
    scripted.require(agent)
    return scripted


def id_of(model: str | Model) -> str:
    """Return a pinned id; for an object that asks a vendor, the id that would pin it."""
    if isinstance(model, str):
        return model
    return model.pin if isinstance(model, VendorModel) else model.mode


def made(model: str, fallback: str | None, max_tokens: int) -> VendorModel:
    """Return a new model of the vendor that a pinned id names."""
    vendor, name = pinned(model)
    other = None if fallback is None else pinned(fallback)[1]
    return vendor(name, fallback=other, max_tokens=max_tokens)


Make = Callable[[str | Model, str | None, int], Model]
"""Makes a model from its pinned id (or itself), its fallback's id, and the token limit of a reply."""

_instead: ContextVar[Make | None] = ContextVar("replaced_by", default=None)


@contextmanager
def replaced_by(make: Make) -> Iterator[None]:
    """Within this block, let `make` make every model that is asked for, whatever the environment says."""
    token = _instead.set(make)
    try:
        yield
    finally:
        _instead.reset(token)


@cache
def _scripted(script: Path) -> ScriptedModel:
    return ScriptedModel(load_script(script))


_made: dict[tuple[str, str | None, int], VendorModel] = {}
"""One of each kind per process, so that each has one pool of connections."""


def shared(model: str, fallback: str | None, max_tokens: int) -> VendorModel:
    """Return the model of a vendor that all of this process use, until `close_models`."""
    key = (model, fallback, max_tokens)
    if key not in _made:
        _made[key] = made(*key)
    return _made[key]


async def close_models() -> None:
    """Close every connection to a vendor. The end of the process does it too."""
    while _made:
        _, model = _made.popitem()
        await model.close()
