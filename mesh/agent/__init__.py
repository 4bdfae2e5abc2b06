"""All that an agent's file imports: `from mesh.agent import Turn, agent, tool`.

Modules that begin with `_` are the runtime, which takes turns off the inbox and runs that file's code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mesh.agent.definition import Agent, agent
    from mesh.agent.errors import ApprovalNeeded, BudgetExhausted, EffectUnknown, Permanent, Retry
    from mesh.agent.tools import NOT_DONE, Tool, ToolError, ToolRefused, tool
    from mesh.agent.turn import Refusal, Turn
    from protocol.wire.commands import Move
    from protocol.wire.handoff import Artifact, Budget, Constraints, Fact

_HOME = {
    "NOT_DONE": "mesh.agent.tools",
    "Agent": "mesh.agent.definition",
    "ApprovalNeeded": "mesh.agent.errors",
    "Artifact": "protocol.wire.handoff",
    "Budget": "protocol.wire.handoff",
    "BudgetExhausted": "mesh.agent.errors",
    "Constraints": "protocol.wire.handoff",
    "EffectUnknown": "mesh.agent.errors",
    "Fact": "protocol.wire.handoff",
    "Move": "protocol.wire.commands",
    "Permanent": "mesh.agent.errors",
    "Refusal": "mesh.agent.turn",
    "Retry": "mesh.agent.errors",
    "Tool": "mesh.agent.tools",
    "ToolError": "mesh.agent.tools",
    "ToolRefused": "mesh.agent.tools",
    "Turn": "mesh.agent.turn",
    "agent": "mesh.agent.definition",
    "tool": "mesh.agent.tools",
}

__all__ = [
    "NOT_DONE",
    "Agent",
    "ApprovalNeeded",
    "Artifact",
    "Budget",
    "BudgetExhausted",
    "Constraints",
    "EffectUnknown",
    "Fact",
    "Move",
    "Permanent",
    "Refusal",
    "Retry",
    "Tool",
    "ToolError",
    "ToolRefused",
    "Turn",
    "agent",
    "tool",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'mesh.agent' has no attribute {name!r}")
    return getattr(import_module(home), name)
