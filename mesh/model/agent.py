"""An agent that a model drives: instructions, tools, whom it may hand to. The rest is as with any agent.

agent = ClaudeAgent(
    "triage",
    instructions=Path(__file__).with_name("triage.md"),
    tools=[find_customer],
    handoffs=["billing", "technical"],
    model=ROUTING,
)
"""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from mesh.agent.definition import Agent, checked_name
from mesh.agent.toolbox import Toolbox, ToolsUnusable, unpacked
from mesh.agent.tools import Tool, short
from mesh.model.anthropic.model import WORK
from mesh.model.choose import model_for, warm
from mesh.model.loop import MAX_CALLS, drive
from mesh.model.moves import Labels, answer_form, require_apart
from mesh.model.prompt import Instructions, load_instructions
from protocol.wire.codec import is_label

if TYPE_CHECKING:
    from mesh.agent.turn import Turn
    from protocol.wire.commands import Move

_log = structlog.get_logger(__name__)


class ClaudeAgent(Agent):
    """A mesh agent whose moves a model decides.

    Args:
        name: as in the fleet file.
        instructions: the system text: a versioned file (its first line says the version), or
            `Instructions`.
        tools: what it can do besides its moves, each with a name of its own and a description. Those that
            a turn may not call are not offered.
        handoffs: whom it may hand to, of those whom the fleet file lets it; None for all of these.
        model: the id that it is pinned to: a cheap one routes, a strong one works.
        fallback: asked instead when that one is overloaded or failing.
        script: rules for the scripted model, which stands in without a key.
        labels: labels that facts of a key have to have, whatever the model says.
        live: whether the request's client may read along with what the model says.
        answer: the type of its answers, as pydantic reads it (a model, `list[Flight]`); None for words.
        max_calls: calls that a round may take before its move.
        version: the code's; a turn that is journaled is bound to it.

    Raises ValueError for a name or a label that cannot be one, and for instructions without a version or a
    text; ToolsUnusable for tools that no model can tell from each other or from its moves, or knows nothing
    of. Of tools in a box, the box raises it as it is opened; of arguments or an answer that have no JSON
    schema, the agent's start.
    """

    def __init__(
        self,
        name: str,
        *,
        instructions: Instructions | Path,
        tools: Sequence[Tool | Toolbox] = (),
        handoffs: Iterable[str] | None = None,
        model: str = WORK,
        fallback: str | None = None,
        script: Path | None = None,
        labels: Labels | None = None,
        live: bool = True,
        answer: Any = None,
        max_calls: int = MAX_CALLS,
        max_tokens: int | None = None,
        version: str = "1",
        description: str = "",
        concurrency: int = 8,
    ) -> None:
        text = load_instructions(instructions) if isinstance(instructions, Path) else instructions
        peers = _peers(handoffs)
        _require_labels(labels or {})
        own = tuple(each if isinstance(each, Tool) else _Apart(each) for each in tools)
        _require_told(tool for tool in own if isinstance(tool, Tool))
        unknown = set(peers or ())
        """Whom no turn could be handed to so far."""

        async def handle(turn: "Turn") -> "Move":
            asked = model_for(
                turn.agent, script=script, model=model, fallback=fallback, max_tokens=max_tokens
            )
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
                answer=answer,
            )

        async def prepare() -> None:
            await asyncio.to_thread(_require_schemas, [each for each in own if isinstance(each, Tool)])
            if answer is not None:
                await asyncio.to_thread(answer_form, answer)
            await warm(name, script=script, model=model, fallback=fallback, max_tokens=max_tokens)

        super().__init__(
            name=checked_name(name),
            handler=handle,
            version=version,
            description=description,
            prompt_version=text.version,
            model=model,
            script=script,
            tools=own,
            concurrency=concurrency,
            prepare=prepare,
        )


class _Apart:
    """A box of tools none of which has the name of a move."""

    def __init__(self, box: Toolbox) -> None:
        self._box = box
        self.name = box.name

    def __repr__(self) -> str:
        return repr(self._box)

    async def tools(self) -> tuple[Tool, ...]:
        tools = await self._box.tools()
        require_apart(tools)
        return tools

    async def close(self) -> None:
        await self._box.close()


def _require_told(tools: Iterable[Tool]) -> None:
    """Raise ToolsUnusable for a tool of our own that is no move's and says what it does."""
    for tool in tools:
        require_apart([tool])
        if not tool.description.strip():
            raise ToolsUnusable(f"{tool.name} says nothing of what it does: give it a docstring")


def _require_schemas(tools: Iterable[Tool]) -> None:
    """Raise ToolsUnusable for a tool whose arguments no model can be told; the others' schemas are made."""
    for tool in tools:
        try:
            _ = tool.schema
        except Exception as wrong:  # pydantic's own, or NameError for a hint that leads nowhere
            # What pydantic advises beyond its first sentence is for models of its own.
            why = short(str(wrong).partition("\n")[0].partition(". ")[0]).rstrip(".") or type(wrong).__name__
            raise ToolsUnusable(
                f"the arguments of {tool.name} have no JSON schema ({why}): annotate them with what JSON has"
            ) from wrong


def _peers(handoffs: Iterable[str] | None) -> frozenset[str] | None:
    """Return the names of agents. Raises ValueError for what cannot be one."""
    if isinstance(handoffs, str):
        raise ValueError("`handoffs` is a list of agents")
    return None if handoffs is None else frozenset(map(checked_name, handoffs))


def _require_labels(labels: Labels) -> None:
    for key, needed in labels.items():
        for label in needed:
            if not is_label(label):
                raise ValueError(f"not a label: {label!r}, of {key!r}; 1 to 64 of a-z A-Z 0-9 _ . : / -")
