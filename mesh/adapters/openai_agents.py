"""Agents of the OpenAI Agents SDK as agents of a mesh. Needs the extra `openai-agents`.

The existing agent stays as it is. A turn runs a copy of it, and of the agents that it hands off to inside
this process, whose model calls and function tools are steps of the turn's journal.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from mesh.adapters._round import Adaptation, adapted, from_extra
from mesh.agent.definition import Agent
from mesh.agent.hooks import Hooks
from mesh.agent.tools import Approver, Effect
from mesh.agent.turn import Turn
from mesh.model.edges import Edge

__all__ = ["mesh_agent"]


def mesh_agent(
    name: str,
    agent: Any,
    *,
    effects: Mapping[str, Effect] | None = None,
    reconcile: Mapping[str, Callable[[str], Any]] | None = None,
    handoffs: Collection[str | Edge] = (),
    moves: Collection[str] = (),
    approver: Approver = "human",
    prompt: Callable[[Turn], Any] | None = None,
    context: Callable[[Turn], Any] | None = None,
    run_config: Any = None,
    max_turns: int = 10,
    live: bool = True,
    version: str = "1",
    description: str = "",
    concurrency: int = 8,
    hooks: Hooks | None = None,
) -> Agent:
    """Return an agent of the mesh that runs an agent of the OpenAI Agents SDK, which stays as it is.

    Args:
        name: as in the fleet file.
        agent: an `agents.Agent`. The agents in its own `handoffs` run in the same turn.
        effects: how its function tools change the world, by name: `idempotent`, `reconcilable` or `once`. A
            tool that is not named only reads.
        reconcile: for each reconcilable effect: a function from its idempotency key to its result, or to
            `NOT_DONE`.
        handoffs: agents of the mesh that its model may hand the work to (or delegate to), by tools that are
            added: names, or `to(…)` of `mesh.model`.
        moves: further moves that its model may make: `ask`, `escalate`, `hand_back`, `give_up`.
        approver: who approves calls of tools with `needs_approval`: `human` or `client`.
        prompt: makes the input from the turn; by default the words of the work and its facts.
        context: makes the run's context from the turn.
        run_config: an `agents.RunConfig`; None for the SDK's own.
        max_turns: model calls of one run, as the SDK counts them.
        live: True if the request's client may read along while the model replies.
        version: of the code; a journaled turn is bound to it.
        hooks: functions of ours that watch its rounds.

    Raises ValueError for a name, an effect or a move that cannot be one, SdkNotInstalled, and ToolsUnusable
    for a tool of a kind that runs in this process and is no function.
    """
    with from_extra("openai-agents", "agents"):
        from mesh.adapters._openai_agents import connected, require_usable, run
    require_usable(agent)
    how = Adaptation(
        effects=effects or {},
        reconcile=reconcile or {},
        handoffs=handoffs,
        moves=moves,
        approver=approver,
        prompt=prompt,
        live=live,
    )
    rounds = partial(run, agent, context, run_config, max_turns)
    return adapted(
        name,
        how,
        rounds,
        version=version,
        description=description,
        concurrency=concurrency,
        hooks=hooks,
        prepare=partial(connected, agent),
    )
