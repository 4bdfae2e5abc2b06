"""Edges of a model agent: to whom it may hand work, in which form, and when that is offered.

    handoffs=["technical", to("billing", carries=RefundRequest, when=lambda turn: "order" in turn.facts)]

Each edge is one tool of the model. The fields of its form become facts of the handoff, one each, so that
labels and `must_carry` hold for them. The agent that gets the work reads them with `turn.form`.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from mesh.agent.definition import checked_name
from mesh.agent.errors import ToolsUnusable
from mesh.agent.tools import NAME_SYNTAX, is_tool_name
from mesh.agent.turn import Turn
from mesh.agent.values import short

TRANSFER = "transfer_to_"
"""Followed by the agent's name: an edge's tool, unless the edge names it."""

When = Callable[[Turn], bool | Awaitable[bool]]
MadeText = Callable[[Turn], str | Awaitable[str]]
"""Makes an agent's instructions for one round."""


class Edge(NamedTuple):
    """One way to hand work on. `to` makes it."""

    agent: str
    """The agent that gets the work."""
    tool: str
    """Name of the tool by which the model takes this edge."""
    form: type[BaseModel] | None = None
    """The facts that the model must give, a field each; None: any facts."""
    description: str = ""
    """What the model reads of the tool; empty for the fleet file's description of the agent."""
    when: When | None = None
    """Returns True if it is offered in this round; None: always."""


def to(
    agent: str,
    *,
    carries: type[BaseModel] | None = None,
    name: str | None = None,
    description: str = "",
    when: When | None = None,
) -> Edge:
    """Return an edge for `handoffs` of a model agent.

    Args:
        agent: the agent that gets the work.
        carries: a pydantic model: the facts that the model has to give, a field each. It is read strictly:
            "25" is no int, and an unknown field is a mistake. The model gets each mistake with its place, and
            may try again. A field that it leaves out is no fact.
        name: of the tool; `transfer_to_<agent>` by default. Two edges to one agent need different names.
        description: what the model reads of the tool; by default how the fleet file describes the agent.
        when: returns True if it is offered in this round. It is called once a round, and its answer is
            recorded.

    Raises ValueError for a name that no agent or no tool can have, ToolsUnusable for a form that is no
    pydantic model or has no JSON schema.
    """
    tool = f"{TRANSFER}{checked_name(agent)}" if name is None else name
    if not is_tool_name(tool):
        raise ValueError(f"no model can call a tool {short(tool)!r}: a name is {NAME_SYNTAX}")
    if tool.startswith(TRANSFER) and tool != f"{TRANSFER}{agent}":
        raise ValueError(f"{tool} is the name of a handoff to another agent")
    form = None if carries is None else _strict(carries, tool)
    return Edge(checked_name(agent), tool, form, description, when)


def edges_of(handoffs: Iterable[str | Edge] | None) -> tuple[Edge, ...] | None:
    """Return the edges that an author lists; None for no list: every agent that the fleet allows.

    Raises ValueError for a mistake in one, and for two with the same tool.
    """
    if handoffs is None:
        return None
    if isinstance(handoffs, str | Edge):
        raise ValueError("`handoffs` is a list of agents")
    found: dict[str, Edge] = {}
    for each in handoffs:
        edge = each if isinstance(each, Edge) else to(each)
        if edge.tool in found and edge != found[edge.tool]:
            raise ValueError(f"two handoffs are called {edge.tool}: give one of them a `name`")
        found[edge.tool] = edge
    return tuple(found.values())


def agents_of(edges: Iterable[Edge] | None) -> frozenset[str] | None:
    """Return the agents that edges lead to; None for all."""
    return None if edges is None else frozenset(edge.agent for edge in edges)


def _strict(form: type[BaseModel], tool: str) -> type[BaseModel]:
    """Return a form that refuses unknown fields, unless its author said what becomes of these."""
    if not (isinstance(form, type) and issubclass(form, BaseModel)):
        raise ToolsUnusable(f"{tool} carries a pydantic model, not {short(repr(form))}")
    if "extra" not in form.model_config:
        fields = {"model_config": ConfigDict(extra="forbid"), "__doc__": form.__doc__}
        form = type(form.__name__, (form,), {**fields, "__module__": form.__module__})
    try:
        form.model_json_schema()
    except (PydanticUserError, PydanticSchemaGenerationError) as wrong:
        why = short(str(wrong).partition("\n")[0])
        raise ToolsUnusable(f"what {tool} carries has no JSON schema ({why})") from wrong
    return form


# --- in one round -------------------------------------------------------------------------------------


class RoundSetup(NamedTuple):
    """What an agent's code makes of a round for its model."""

    instructions: str
    edges: tuple[Edge, ...] | None
    """The edges that are offered; None for every agent that the fleet allows."""
    is_made: bool
    """True if the instructions were made for this round; they are then no fixed part of its prompts."""


async def set_up(turn: Turn, instructions: str | MadeText, edges: Sequence[Edge] | None) -> RoundSetup:
    """Return what the model is told and offered in this round.

    What code makes of it is recorded, so that a round that runs again is told and offered the same.

    Raises what that code raises, and TypeError for instructions that are no text.
    """
    made: dict[str, Any] = {}
    if not isinstance(instructions, str):
        text = made["instructions"] = await _value(instructions(turn))
        if not isinstance(text, str):
            raise TypeError(f"instructions are a text, not {type(text).__name__}")
    asked = {edge.tool: edge.when for edge in edges or () if edge.when is not None}
    if asked:
        made["offered"] = [tool for tool, when in asked.items() if await _value(when(turn))]
    kept = await turn.execution.set_up(made) if made else made
    held_back = asked.keys() - set(kept.get("offered", ()))
    chosen = None if edges is None else tuple(edge for edge in edges if edge.tool not in held_back)
    text = kept["instructions"] if "instructions" in made else str(instructions)
    return RoundSetup(text, chosen, is_made="instructions" in made)


async def _value(made: Any) -> Any:
    """Return what an author's function made, whether it is async or not."""
    return await made if inspect.isawaitable(made) else made
