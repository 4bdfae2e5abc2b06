"""An agent driven by a model: instructions, tools and peers.

agent = ClaudeAgent(
    "triage",
    instructions=Path(__file__).with_name("triage.md"),
    tools=[find_customer],
    handoffs=["billing", "technical"],
    model=ROUTING,
)
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.agent.definition import Agent, Toolbox, checked_name, unpacked
from mesh.agent.errors import ToolsUnusable
from mesh.agent.hooks import Hooks
from mesh.agent.tools import Tool
from mesh.agent.values import short
from mesh.model.arguments import answer_form
from mesh.model.choice import id_of, model_for
from mesh.model.edges import Edge, MadeText, agents_of, edges_of
from mesh.model.files import media_types
from mesh.model.loop import MAX_CALLS, drive
from mesh.model.moves import Labels, require_apart
from mesh.model.port import Model
from mesh.model.prompt import Instructions, load_instructions
from mesh.model.vendors import WORK, pinned
from mesh.service.logs import get_logger
from protocol.wire.ids import is_label

if TYPE_CHECKING:
    from mesh.agent.turn import Turn
    from protocol.wire.moves import Move

_log = get_logger(__name__)


class ClaudeAgent(Agent):
    """A mesh agent whose moves are decided by a model.

    Args:
        name: as in the fleet file.
        instructions: the system text: a versioned file (its first line gives the version), `Instructions`, or
            a function that makes it of the turn. It is called once a round, and its text is recorded. Where a
            later round's text is another one, the conversation with the model begins anew.
        tools: its actions besides moves, each with a unique name and a description. Tools that a turn may
            not call are not offered.
        handoffs: agents it may hand to, among those the fleet file allows, by name or by `mesh.model.to`,
            with which a handoff has a form, a name, a description and a condition; None for all of these.
        model: the pinned id: a cheap model routes, a strong one works. `VENDOR:…` names another vendor's
            model. A custom model is accepted, too (`mesh.model.Model`).
        fallback: the id of a model that is asked instead when the first is overloaded or failing.
        script: rules for the scripted model, which is used without a key.
        labels: labels that facts of a key must have, whatever the model gives them.
        live: True if the request's client may read along while the model replies.
        output_type: the type of its answers, as pydantic reads it (a model, `list[Flight]`); None for text.
        remembers: True if its answers may leave facts to the request's conversation: `complete` then has the
            argument `remember`.
        transcript: number of a conversation's exchanges to keep and show to the model: the client's words,
            questions, replies and answers of its last requests. 0 for none.
        sees: media types of artifacts that the model is shown, among those handed over: `image/*`,
            `application/pdf`. Others it knows by their names.
        max_calls: calls that a round may take before its move.
        version: of the code; a journaled turn is bound to it.
        hooks: functions that watch its rounds, and decide nothing.

    Raises ValueError for an invalid name or label, a fallback of another vendor, and instructions without a
    version or a text. Raises ToolsUnusable for tools without a description, or with the name of a move. For
    toolboxes, and for types without a JSON schema, it is raised when the agent starts.
    """

    def __init__(
        self,
        name: str,
        *,
        instructions: Instructions | Path | MadeText,
        tools: Sequence[Tool | Toolbox] = (),
        handoffs: Iterable[str | Edge] | None = None,
        model: str | Model = WORK,
        fallback: str | None = None,
        script: Path | None = None,
        labels: Labels | None = None,
        live: bool = True,
        output_type: Any = None,
        remembers: bool = False,
        transcript: int = 0,
        sees: Iterable[str] = (),
        max_calls: int = MAX_CALLS,
        max_tokens: int | None = None,
        version: str = "1",
        description: str = "",
        concurrency: int = 8,
        hooks: Hooks | None = None,
    ) -> None:
        system: str | MadeText
        if isinstance(instructions, Instructions | Path):
            text = load_instructions(instructions)
            system, prompt_version = text.text, text.version
        else:
            system, prompt_version = instructions, ""
        edges = edges_of(handoffs)
        require_labels(labels or {})
        if transcript < 0:
            raise ValueError(f"transcript is a number of exchanges, not {transcript}")
        require_fallback(model, fallback)
        own, shown = tuple(tools), media_types(sees)
        _require_described([tool for tool in own if isinstance(tool, Tool)], edges)
        chosen = partial(model_for, script=script, model=model, fallback=fallback, max_tokens=max_tokens)
        unknown = set(agents_of(edges) or ())
        """Peers that no turn could hand work to so far."""

        async def handle(turn: "Turn") -> "Move":
            asked = chosen(turn.agent)
            if missing := sorted(unknown.difference(turn.peers)):
                unknown.clear()  # reported once
                _log.warning("handoffs_out_of_reach", agent=turn.agent, names=missing)
            return await drive(
                turn,
                asked,
                instructions=system,
                tools=await unpacked(own),
                handoffs=edges,
                max_calls=max_calls,
                labels=labels,
                live=live,
                output_type=output_type,
                remembers=remembers,
                transcript=transcript,
                sees=shown,
            )

        async def prepare() -> None:
            require_apart(await unpacked(own), edges)
            await asyncio.to_thread(_require_schemas, [each for each in own if isinstance(each, Tool)])
            await prepared(lambda: (chosen(name),), output_type)

        super().__init__(
            name=checked_name(name),
            handler=handle,
            version=version,
            description=description,
            prompt_version=prompt_version,
            model=id_of(model),
            own_model=isinstance(model, Model) and not model.is_billed,
            script=script,
            tools=own,
            concurrency=concurrency,
            hooks=hooks,
            prepare=prepare,
        )


def _require_described(tools: Sequence[Tool], edges: Iterable[Edge] | None) -> None:
    """Raise ToolsUnusable for a tool that has the name of a move, or no description."""
    require_apart(tools, edges)
    for tool in tools:
        if not tool.description.strip():
            raise ToolsUnusable(f"{tool.name} says nothing of what it does: give it a docstring")


def _require_schemas(tools: Iterable[Tool]) -> None:
    """Make the tools' schemas. Raise ToolsUnusable for a tool whose arguments have none."""
    for tool in tools:
        try:
            _ = tool.schema
        except Exception as wrong:  # pydantic's own, or NameError for a hint that cannot be resolved
            # Beyond its first sentence, pydantic's advice is for pydantic models.
            why = short(str(wrong).partition("\n")[0].partition(". ")[0]).rstrip(".") or type(wrong).__name__
            raise ToolsUnusable(
                f"the arguments of {tool.name} have no JSON schema ({why}): annotate them with what JSON has"
            ) from wrong


async def prepared(models: Callable[[], Iterable[Model]], output_type: Any) -> None:
    """Load what an agent's models need, in threads: a vendor's SDK would block the loop for seconds."""
    if output_type is not None:
        await asyncio.to_thread(answer_form, output_type)
    for model in models():
        await asyncio.to_thread(model.warm)


def require_fallback(model: str | Model, fallback: str | None) -> None:
    """Raise ValueError for a fallback of another vendor."""
    if fallback is not None and (isinstance(model, Model) or pinned(model)[0] is not pinned(fallback)[0]):
        raise ValueError(f"{fallback} is no fallback: a model has one of its own vendor")


def require_labels(labels: Labels) -> None:
    """Raise ValueError for an invalid label."""
    for key, needed in labels.items():
        for label in needed:
            if not is_label(label):
                raise ValueError(f"not a label: {label!r}, of {key!r}; 1 to 64 of a-z A-Z 0-9 _ . : / -")
