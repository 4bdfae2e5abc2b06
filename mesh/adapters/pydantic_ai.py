"""Agents of Pydantic AI as agents of a mesh. Needs the extra `pydantic-ai`.

The existing agent stays as it is. Each run gets a capability that makes its model requests and its tool calls
steps of the turn's journal. Its instructions, hooks and validators run again whenever the turn does.
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
    from pydantic_ai import Agent as ForeignAgent

__all__ = ["mesh_agent"]


def mesh_agent(
    name: str,
    agent: "ForeignAgent[Any, Any]",
    *,
    effects: Mapping[str, Effect] | None = None,
    reconcile: Mapping[str, Callable[[str], Any]] | None = None,
    handoffs: Collection[str | Edge] = (),
    moves: Collection[str] = (),
    approver: Approver = "human",
    prompt: Callable[[Turn], Any] | None = None,
    deps: Callable[[Turn], Any] | None = None,
    live: bool = True,
    version: str = "1",
    description: str = "",
    concurrency: int = 8,
    hooks: Hooks | None = None,
) -> Agent:
    """Return an agent of the mesh that runs an agent of Pydantic AI, which stays as it is.

    Args:
        name: as in the fleet file.
        effects: how its tools change the world, by name: `idempotent`, `reconcilable` or `once`. A tool that
            is not named only reads.
        reconcile: for each reconcilable effect: a function from its idempotency key to its result, or to
            `NOT_DONE`.
        handoffs: agents that its model may hand the work to (or delegate to), by tools that are added: names,
            or `to(…)` of `mesh.model`.
        moves: further moves that its model may make: `ask`, `escalate`, `hand_back`, `give_up`.
        approver: who approves calls of tools with `requires_approval`: `human` or `client`.
        prompt: makes the user prompt from the turn; by default the words of the work and its facts.
        deps: makes the run's dependencies from the turn.
        live: True if the request's client may read along while the model replies.
        version: of the code; a journaled turn is bound to it.
        hooks: functions of ours that watch its rounds.

    Raises ValueError for a name, an effect or a move that cannot be one, SdkNotInstalled, and TypeError for
    what is no agent.
    """
    with from_extra("pydantic-ai", "pydantic_ai"):
        from mesh.adapters._pydantic_ai import require_agent, run
    require_agent(agent)
    how = Adaptation(
        effects=effects or {},
        reconcile=reconcile or {},
        handoffs=handoffs,
        moves=moves,
        approver=approver,
        prompt=prompt,
        live=live,
    )
    rounds = partial(run, agent, deps)
    return adapted(
        name,
        how,
        rounds,
        version=version,
        description=description,
        concurrency=concurrency,
        hooks=hooks,
    )
