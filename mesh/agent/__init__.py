"""All that an agent's file imports: `from mesh.agent import Turn, agent, tool`.

Beside it, in this folder, the runtime that takes turns off the inbox and runs that file's code.
"""

from mesh.agent.definition import Agent, agent
from mesh.agent.failures import EffectUnknown, Permanent, Retry
from mesh.agent.stops import ApprovalNeeded, BudgetExhausted
from mesh.agent.tools import Tool, ToolError, ToolRefused, tool
from mesh.agent.turn import Refusal, Turn
from protocol.wire.commands import Move
from protocol.wire.handoff import Artifact, Budget, Constraints, Fact

__all__ = [
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
