"""Graphs of LangGraph as agents of a mesh. Needs the extra `langgraph`.

The existing graph stays as it is. While it runs for a turn, the calls of LangChain's chat models and tools in
its nodes are steps of the turn's journal, wherever the nodes have them from.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from mesh.adapters._round import Adaptation, adapted, from_extra
from mesh.agent.definition import Agent
from mesh.agent.hooks import Hooks
from mesh.agent.tools import Approver, Effect
from mesh.agent.turn import Turn
from mesh.model.edges import Edge

if TYPE_CHECKING:
    from langgraph.pregel import Pregel

__all__ = ["mesh_agent"]


def mesh_agent(
    name: str,
    graph: "Pregel[Any, Any, Any, Any]",
    *,
    effects: Mapping[str, Effect] | None = None,
    reconcile: Mapping[str, Callable[[str], Any]] | None = None,
    handoffs: Collection[str | Edge] = (),
    moves: Collection[str] = (),
    offered_in: Collection[str] = (),
    approver: Approver = "human",
    prompt: Callable[[Turn], Any] | None = None,
    answer: Callable[[Any], Any] | None = None,
    context: Callable[[Turn], Any] | None = None,
    config: Mapping[str, Any] | None = None,
    live: bool = True,
    version: str = "1",
    description: str = "",
    concurrency: int = 8,
    hooks: Hooks | None = None,
) -> Agent:
    """Return an agent of the mesh that runs a compiled graph of LangGraph, which stays as it is.

    Args:
        name: as in the fleet file.
        graph: a compiled graph. A checkpointer of its own is not used: the journal takes its place.
        effects: how its tools change the world, by name: `idempotent`, `reconcilable` or `once`. A tool that
            is not named only reads.
        reconcile: for each reconcilable effect: a function from its idempotency key to its result, or to
            `NOT_DONE`.
        handoffs: agents that its models may hand the work to (or delegate to), by tools that are added:
            names, or `to(…)` of `mesh.model`.
        moves: further moves that its models may make: `ask`, `escalate`, `hand_back`, `give_up`.
        offered_in: nodes whose models are offered the moves; by default, every model with tools.
        approver: who answers what the graph asks by `interrupt`: `human` or `client`.
        prompt: makes the input from the turn: the graph's state, or a text for its `messages`; by default the
            words of the work and its facts.
        answer: makes the answer from the last state; by default the last message's text, or the
            `structured_response`, or the state.
        context: makes the run's context from the turn.
        config: a `RunnableConfig`, such as `{"recursion_limit": 50}`.
        live: True if the request's client may read along while a model replies.
        version: of the code; a journaled turn is bound to it.
        hooks: functions of ours that watch its rounds.

    Raises ValueError for a name, an effect or a move that cannot be one, SdkNotInstalled, and TypeError for
    what is no compiled graph.
    """
    with from_extra("langgraph", "langgraph", "langchain_core"):
        from mesh.adapters._langgraph import require_graph, run
    require_graph(graph)
    how = Adaptation(
        effects=effects or {},
        reconcile=reconcile or {},
        handoffs=handoffs,
        moves=moves,
        approver=approver,
        prompt=prompt,
        live=live,
    )
    rounds = partial(run, graph, frozenset(offered_in), answer, context, config or {})
    return adapted(
        name,
        how,
        rounds,
        version=version,
        description=description,
        concurrency=concurrency,
        hooks=hooks,
    )
