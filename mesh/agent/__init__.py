"""All that an agent's file imports: `from mesh.agent import Turn, agent, tool`.

Beside it, in this folder, the runtime that takes turns off the inbox and runs that file's code.
"""

from mesh.agent.definition import Agent, agent
from mesh.agent.failures import Permanent, Retry
from mesh.agent.tools import Tool, ToolError, tool
from mesh.agent.turn import Refusal, Turn
from protocol.handoff import Artifact, Budget, Constraints, Fact
from protocol.messages import Move

__all__ = [
    "Agent",
    "Artifact",
    "Budget",
    "Constraints",
    "Fact",
    "Move",
    "Permanent",
    "Refusal",
    "Retry",
    "Tool",
    "ToolError",
    "Turn",
    "agent",
    "tool",
]
