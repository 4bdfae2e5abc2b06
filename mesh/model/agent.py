"""An agent that a model drives: instructions, tools and peers; and the choice of that model.

agent = ClaudeAgent(
    "triage",
    instructions=Path(__file__).with_name("triage.md"),
    tools=[find_customer],
    handoffs=["billing", "technical"],
    model=ROUTING,
)

`MESH_MODEL` says who replies: `scripted` (a file of rules), the vendor whose models may be asked, `claude` or
`openai`, or `pinned`: each agent's own vendor. Left out, it is `scripted`: a key that happens to be there
spends nothing in a test or a script. Only `mesh agent run` takes a key for a yes (`definition.key_will_do`).
A model of one's own that costs nothing replies by itself, unless the word is `scripted` and it has rules. The
environment is read when a turn asks, not at import.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mesh.agent.definition import Agent, Toolbox, a_key_will_do, checked_name, unpacked
from mesh.agent.errors import Permanent, ToolsUnusable
from mesh.agent.tools import Tool
from mesh.agent.values import short
from mesh.model.anthropic import WORK, ClaudeModel
from mesh.model.arguments import answer_form
from mesh.model.loop import MAX_CALLS, drive
from mesh.model.moves import Labels, require_apart
from mesh.model.openai import OpenAIModel
from mesh.model.port import Model
from mesh.model.prompt import Instructions, load_instructions
from mesh.model.scripted import ScriptedModel, load_script
from mesh.model.vendor import MAX_TOKENS, VendorModel
from mesh.service.logs import get_logger
from protocol.wire.ids import is_label

if TYPE_CHECKING:
    from mesh.agent.turn import Turn
    from protocol.wire.commands import Move

_log = get_logger(__name__)

VARIABLE = "MESH_MODEL"
KEY = "ANTHROPIC_API_KEY"

Mode = Literal["scripted", "claude", "openai", "pinned"]
PINNED: Mode = "pinned"
"""Lets each agent ask the vendor of its own model."""
OPENAI = "openai:"
"""Begins the pinned id of a model of OpenAI's, or of a server that speaks its API: `openai:gpt-…`."""


class Vendor(NamedTuple):
    """What asking a vendor's models takes."""

    name: Mode
    sdk: str
    """Module of its SDK; the extra that installs it is called like the vendor."""
    variables: tuple[str, ...]
    """Any of them lets its models be asked: its key, or the address of a server that may want none."""
    model: type[VendorModel]


CLAUDE = Vendor("claude", "anthropic", (KEY,), ClaudeModel)
VENDORS: Mapping[str, Vendor] = {
    "claude": CLAUDE,
    "openai": Vendor("openai", "openai", ("OPENAI_API_KEY", "OPENAI_BASE_URL"), OpenAIModel),
}


def pinned(model: str) -> tuple[Vendor, str]:
    """Return the vendor of a pinned id, and the id as the vendor has it."""
    return (VENDORS["openai"], model.removeprefix(OPENAI)) if model.startswith(OPENAI) else (CLAUDE, model)


class ModelUnavailable(Permanent, code="model.unavailable"):
    """There is no such model here. Another round does not help; the text says what to do."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{VARIABLE}={name}: {why}")
        self.name = name


class ClaudeAgent(Agent):
    """A mesh agent whose moves a model decides.

    Args:
        name: as in the fleet file.
        instructions: the system text: a versioned file (its first line gives the version), or
            `Instructions`.
        tools: its actions besides moves, each with a name of its own and a description. Tools that a turn
            may not call are not offered.
        handoffs: agents it may hand to, among those the fleet file allows; None for all of these.
        model: the pinned id: a cheap model routes, a strong one works. `openai:…` is one of OpenAI's API. A
            model of your own will do, too (`mesh.model.Model`).
        fallback: the id of one that is asked instead when that model is overloaded or failing.
        script: rules for the scripted model, which stands in without a key.
        labels: labels that facts of a key must have, whatever the model says.
        live: True if the request's client may read along while the model replies.
        output_type: the type of its answers, as pydantic reads it (a model, `list[Flight]`); None for words.
        remembers: True if its answers may leave facts to the request's conversation: `complete` then has the
            argument `remember`.
        max_calls: calls that a round may take before its move.
        version: of the code; a journaled turn is bound to it.

    Raises ValueError for an invalid name or label, a fallback of another vendor, and instructions without a
    version or a text. Raises ToolsUnusable for tools without a description, or with the name of a move;
    toolboxes, and types without a JSON schema, raise it as the agent starts.
    """

    def __init__(
        self,
        name: str,
        *,
        instructions: Instructions | Path,
        tools: Sequence[Tool | Toolbox] = (),
        handoffs: Iterable[str] | None = None,
        model: str | Model = WORK,
        fallback: str | None = None,
        script: Path | None = None,
        labels: Labels | None = None,
        live: bool = True,
        output_type: Any = None,
        remembers: bool = False,
        max_calls: int = MAX_CALLS,
        max_tokens: int | None = None,
        version: str = "1",
        description: str = "",
        concurrency: int = 8,
    ) -> None:
        text = load_instructions(instructions)
        if isinstance(handoffs, str):
            raise ValueError("`handoffs` is a list of agents")
        peers = None if handoffs is None else frozenset(map(checked_name, handoffs))
        require_labels(labels or {})
        require_fallback(model, fallback)
        own = tuple(tools)
        _require_described(tool for tool in own if isinstance(tool, Tool))
        chosen = partial(model_for, script=script, model=model, fallback=fallback, max_tokens=max_tokens)
        unknown = set(peers or ())
        """Peers that no turn could be handed to so far."""

        async def handle(turn: "Turn") -> "Move":
            asked = chosen(turn.agent)
            if missing := sorted(unknown.difference(turn.peers)):
                unknown.clear()  # it is said once
                _log.warning("handoffs_out_of_reach", agent=turn.agent, names=missing)
            return await drive(
                turn,
                asked,
                instructions=text.text,
                tools=await unpacked(own),
                handoffs=peers,
                max_calls=max_calls,
                labels=labels,
                live=live,
                output_type=output_type,
                remembers=remembers,
            )

        async def prepare() -> None:
            require_apart(await unpacked(own))
            await asyncio.to_thread(_require_schemas, [each for each in own if isinstance(each, Tool)])
            await prepared(lambda: (chosen(name),), output_type)

        super().__init__(
            name=checked_name(name),
            handler=handle,
            version=version,
            description=description,
            prompt_version=text.version,
            model=model.mode if isinstance(model, Model) else model,
            own_model=isinstance(model, Model) and not model.is_billed,
            script=script,
            tools=own,
            concurrency=concurrency,
            prepare=prepare,
        )


def _require_described(tools: Iterable[Tool]) -> None:
    """Raise ToolsUnusable for a tool that has the name of a move, or no description."""
    for tool in tools:
        require_apart([tool])
        if not tool.description.strip():
            raise ToolsUnusable(f"{tool.name} says nothing of what it does: give it a docstring")


def _require_schemas(tools: Iterable[Tool]) -> None:
    """Make the tools' schemas. Raise ToolsUnusable for a tool whose arguments have none."""
    for tool in tools:
        try:
            _ = tool.schema
        except Exception as wrong:  # pydantic's own, or NameError for a hint that leads nowhere
            # Beyond its first sentence pydantic's advice is for models of its own.
            why = short(str(wrong).partition("\n")[0].partition(". ")[0]).rstrip(".") or type(wrong).__name__
            raise ToolsUnusable(
                f"the arguments of {tool.name} have no JSON schema ({why}): annotate them with what JSON has"
            ) from wrong


async def prepared(models: Callable[[], Iterable[Model]], output_type: Any) -> None:
    """Load what an agent's models need, in threads: a vendor's SDK would block the loop for long."""
    if output_type is not None:
        await asyncio.to_thread(answer_form, output_type)
    for model in models():
        await asyncio.to_thread(model.warm)


def require_fallback(model: str | Model, fallback: str | None) -> None:
    """Raise ValueError for a fallback that is another vendor's."""
    if fallback is not None and (isinstance(model, Model) or pinned(model)[0] is not pinned(fallback)[0]):
        raise ValueError(f"{fallback} is no fallback: a model has one of its own vendor")


def require_labels(labels: Labels) -> None:
    """Raise ValueError for what is no label."""
    for key, needed in labels.items():
        for label in needed:
            if not is_label(label):
                raise ValueError(f"not a label: {label!r}, of {key!r}; 1 to 64 of a-z A-Z 0-9 _ . : / -")


# --- which model ----------------------------------------------------------------------------------


def mode(
    said: str | None = None, model: str = "", *, own: bool = False, rules: bool = True
) -> Mode | Literal["own"]:
    """Return who replies by what `said`, or else the environment, asks for. Raises ModelUnavailable.

    Args:
        model: the id that the agent is pinned to; Claude's vendor is asked for any other agent.
        own: True for a model of one's own that costs nothing.
        rules: True if there are any to stand in for it.
    """
    vendor = pinned(model)[0]
    match os.environ.get(VARIABLE, "") if said is None else said:
        case "":
            if own:
                return "own"
            return vendor.name if a_key_will_do() and _may_ask(vendor) and _has_sdk(vendor) else "scripted"
        case "scripted":
            return "own" if own and not rules else "scripted"
        case name if name == PINNED or name in VENDORS:
            if own:
                return "own"
            if model and name not in (PINNED, vendor.name):
                own_ones = f"say {VARIABLE}={vendor.name}, or {PINNED} where agents have different vendors"
                raise ModelUnavailable(name, f"{model} is another vendor's: {own_ones}")
            may_ask = (each for each in VENDORS.values() if _may_ask(each))
            wanted = vendor if model else VENDORS.get(name) or next(may_ask, vendor)
            if not _has_sdk(wanted):
                raise ModelUnavailable(name, f"install handoff-mesh[{name}]")
            if not _may_ask(wanted):
                raise ModelUnavailable(name, f"set {' or '.join(wanted.variables)}")
            return wanted.name
        case other:
            raise ModelUnavailable(
                other, f"there is no such model; scripted, {', '.join(VENDORS)} or {PINNED}"
            )


def _may_ask(vendor: Vendor) -> bool:
    return any(os.environ.get(variable) for variable in vendor.variables)


def driven_by(agent: Agent) -> str:
    """Return what drives an agent, for its card: empty, `scripted`, or the id that its vendor has.

    An agent without a model and without a prompt has none. Raises ModelUnavailable.
    """
    if not agent.model and not agent.prompt_version:
        return ""
    kind = mode(model=agent.model, own=agent.own_model, rules=agent.script is not None)
    return kind if kind == "scripted" else pinned(agent.model)[1] or kind


def _has_sdk(vendor: Vendor) -> bool:
    return find_spec(vendor.sdk) is not None  # which imports nothing


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
        max_tokens: of one reply.

    Raises ModelUnavailable, ScriptInvalid.
    """
    own = model if isinstance(model, Model) else None
    make, most = _instead.get(), max_tokens or MAX_TOKENS
    if make is not None:
        return make(model, fallback, most)
    free = own is not None and not own.is_billed
    kind = mode(model=_id_of(model), own=free, rules=script is not None)
    if kind != "scripted":
        return own or _vendors(_id_of(model), fallback, most)
    if script is None:
        unset = f" ({VARIABLE} is not set, and a key alone spends nothing here)"
        vendor = pinned(_id_of(model))[0]
        raise ModelUnavailable(
            "scripted",
            f"{agent} has no script{'' if os.environ.get(VARIABLE) else unset}; give it one, put a model of "
            "yours behind it (mesh.testing.driven_by), "
            f"or set {VARIABLE}={vendor.name} and {vendor.variables[0]} to ask the real one",
        )
    scripted = _scripted(script)
    scripted.require(agent)
    return scripted


def _id_of(model: str | Model) -> str:
    """Return a pinned id; of an object that asks a vendor, as if it were pinned by its id."""
    if isinstance(model, str):
        return model
    return f"{OPENAI}{model.mode}" if isinstance(model, OpenAIModel) else model.mode


def made(model: str, fallback: str | None, max_tokens: int) -> VendorModel:
    """Return a new model of the vendor that a pinned id names."""
    vendor, name = pinned(model)
    other = None if fallback is None else pinned(fallback)[1]
    return vendor.model(name, fallback=other, max_tokens=max_tokens)


Make = Callable[[str | Model, str | None, int], Model]
"""Makes a model from its pinned id (or itself), its fallback's id, and the most tokens of a reply."""

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


_made: dict[tuple[str, str | None, int], VendorModel] = {}
"""One of a kind for a process, and with it one pool of connections."""


def _vendors(model: str, fallback: str | None, max_tokens: int) -> VendorModel:
    key = (model, fallback, max_tokens)
    if key not in _made:
        _made[key] = made(*key)
    return _made[key]


async def close_models() -> None:
    """Close every connection to a vendor. The end of the process does it too."""
    while _made:
        _, model = _made.popitem()
        await model.close()
