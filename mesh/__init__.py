"""Handoff Mesh: event-sourced, guarded handoffs between LLM agents on NATS JetStream.

The names below are the public ones. They are imported on first use, so that `import mesh` costs nothing and
needs no bus. An agent's own file imports from `mesh.agent`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mesh.agent.definition import Agent
    from mesh.agent.errors import Permanent, Retry
    from mesh.agent.tools import Tool
    from mesh.agent.turn import RefusedMove, Turn
    from mesh.artifacts import ArtifactStore
    from mesh.client import (
        AgentNote,
        AnswerInvalid,
        Client,
        JournalStep,
        LogEvent,
        Outcome,
        Question,
        SubmitRejected,
    )
    from mesh.local.run import RequestWaits, run, run_sync
    from protocol.wire.errors import MeshError
    from protocol.wire.handoff import Artifact, Budget, Constraints, Fact, Handoff
    from protocol.wire.moves import Move

__all__ = [
    "Agent",
    "AgentNote",
    "AnswerInvalid",
    "Artifact",
    "ArtifactStore",
    "Budget",
    "Client",
    "Constraints",
    "Fact",
    "Handoff",
    "JournalStep",
    "LogEvent",
    "MeshError",
    "Move",
    "Outcome",
    "Permanent",
    "Question",
    "RefusedMove",
    "RequestWaits",
    "Retry",
    "SubmitRejected",
    "Tool",
    "Turn",
    "run",
    "run_sync",
]

_HOMES = (
    "protocol.wire.errors",
    "protocol.wire.handoff",
    "mesh.agent",
    "mesh.artifacts",
    "mesh.client",
    "mesh.local.run",
)
"""In search order: the later ones load more."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in map(import_module, _HOMES):
            if hasattr(home, name):
                return getattr(home, name)
    raise AttributeError(f"module 'mesh' has no attribute {name!r}")
