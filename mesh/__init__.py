"""Handoff Mesh: event-sourced, guarded handoffs between LLM agents on NATS JetStream.

The names below are the public ones. They are imported when they are first used, so that `import mesh`
costs nothing and needs no bus. An agent's own file imports from `mesh.agent`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mesh.agent.definition import Agent
    from mesh.agent.errors import Permanent, Retry
    from mesh.agent.tools import Tool
    from mesh.agent.turn import Refusal, Turn
    from mesh.client import Client, Outcome, Question, SubmitRejected
    from protocol.wire.commands import Move
    from protocol.wire.errors import MeshError
    from protocol.wire.handoff import Artifact, Budget, Constraints, Fact, Handoff

_HOME = {
    "Agent": "mesh.agent.definition",
    "Artifact": "protocol.wire.handoff",
    "Budget": "protocol.wire.handoff",
    "Client": "mesh.client",
    "Constraints": "protocol.wire.handoff",
    "Fact": "protocol.wire.handoff",
    "Handoff": "protocol.wire.handoff",
    "MeshError": "protocol.wire.errors",
    "Move": "protocol.wire.commands",
    "Outcome": "mesh.client",
    "Permanent": "mesh.agent.errors",
    "Question": "mesh.client",
    "Refusal": "mesh.agent.turn",
    "Retry": "mesh.agent.errors",
    "SubmitRejected": "mesh.client",
    "Tool": "mesh.agent.tools",
    "Turn": "mesh.agent.turn",
}

__all__ = [
    "Agent",
    "Artifact",
    "Budget",
    "Client",
    "Constraints",
    "Fact",
    "Handoff",
    "MeshError",
    "Move",
    "Outcome",
    "Permanent",
    "Question",
    "Refusal",
    "Retry",
    "SubmitRejected",
    "Tool",
    "Turn",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'mesh' has no attribute {name!r}")
    return getattr(import_module(home), name)
