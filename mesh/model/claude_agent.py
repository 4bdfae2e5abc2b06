"""An agent that a model drives: instructions, tools, whom it may hand to. The rest is as with any agent.

agent = ClaudeAgent(
    "triage",
    instructions=Path(__file__).with_name("triage.md"),
    tools=[find_customer],
    handoffs=["billing", "technical"],
    model=ROUTING,
)
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.agent.definition import Agent, checked_name
from mesh.agent.toolbox import Toolbox, unpacked
from mesh.agent.tools import Tool
from mesh.model.choose import model_for
from mesh.model.claude import WORK
from mesh.model.instructions import Instructions, load_instructions
from mesh.model.loop import MAX_CALLS, drive
from mesh.model.moves import Labels

if TYPE_CHECKING:
    from mesh.agent.turn import Turn
    from protocol.messages import Move


class ClaudeAgent(Agent):
    """A mesh agent whose moves a model decides.

    Args:
        name: as in the fleet file.
        instructions: the system text: a versioned file (its first line says the version), or
            `Instructions`.
        tools: what it can do besides its moves. Those that a turn may not call are not offered.
        handoffs: whom it may hand to, of those whom the fleet file lets it; None for all of these.
        model: the id that it is pinned to: a cheap one routes, a strong one works.
        fallback: asked instead when that one is overloaded or failing.
        script: rules for the scripted model, which stands in without a key.
        labels: labels that facts of a key have to have, whatever the model says.
        live: whether the request's client may read along with what the model says.
        max_calls: calls that a round may take before its move.
        version: the code's; a turn that is journaled is bound to it.

    Raises ValueError for a name that cannot be one, or instructions without a version.
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
        max_calls: int = MAX_CALLS,
        max_tokens: int | None = None,
        version: str = "1",
        description: str = "",
        concurrency: int = 8,
    ) -> None:
        text = load_instructions(instructions) if isinstance(instructions, Path) else instructions
        reachable = None if handoffs is None else frozenset(handoffs)

        async def handle(turn: "Turn") -> "Move":
            asked = model_for(
                turn.agent, script=script, model=model, fallback=fallback, max_tokens=max_tokens
            )
            return await drive(
                turn,
                asked,
                instructions=text.text,
                tools=await unpacked(tools),
                handoffs=reachable,
                max_calls=max_calls,
                labels=labels,
                live=live,
            )

        super().__init__(
            name=checked_name(name),
            handler=handle,
            version=version,
            description=description,
            prompt_version=text.version,
            model=model,
            script=script,
            tools=tuple(tools),
            concurrency=concurrency,
        )
