"""All that an agent's file imports: `from mesh.agent import Turn, agent, tool`.

Modules that begin with `_` are the runtime, which takes turns off the inbox and runs that file's code. Leads
driven by models are defined in `mesh.model` and loaded only when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mesh.agent._watch import CalledModel, CalledTool
    from mesh.agent.definition import Agent, agent
    from mesh.agent.errors import (
        ApprovalNeeded,
        BudgetExhausted,
        EffectUnknown,
        FactUnusable,
        Permanent,
        Retry,
        Throttled,
        ToolError,
        ToolRefused,
    )
    from mesh.agent.hooks import Hooks
    from mesh.agent.tools import NOT_DONE, Tool, tool
    from mesh.agent.turn import RefusedMove, Turn
    from mesh.agent.values import FromFact, Result
    from mesh.model import ContextWindow, Flaw, Supervisor, Swarm
    from protocol.wire.handoff import Artifact, Budget, Constraints, Fact
    from protocol.wire.moves import (
        Ask,
        Complete,
        Delegate,
        Deliver,
        Escalate,
        Fail,
        HandBack,
        Move,
        Task,
        Transfer,
    )

__all__ = [
    "NOT_DONE",
    "Agent",
    "ApprovalNeeded",
    "Artifact",
    "Ask",
    "Budget",
    "BudgetExhausted",
    "CalledModel",
    "CalledTool",
    "Complete",
    "Constraints",
    "ContextWindow",
    "Delegate",
    "Deliver",
    "EffectUnknown",
    "Escalate",
    "Fact",
    "FactUnusable",
    "Fail",
    "Flaw",
    "FromFact",
    "HandBack",
    "Hooks",
    "Move",
    "Permanent",
    "RefusedMove",
    "Result",
    "Retry",
    "Supervisor",
    "Swarm",
    "Task",
    "Throttled",
    "Tool",
    "ToolError",
    "ToolRefused",
    "Transfer",
    "Turn",
    "agent",
    "tool",
]

_HOMES = (
    "mesh.agent.errors",
    "mesh.agent.tools",
    "mesh.agent.hooks",
    "mesh.agent.definition",
    "protocol.wire.handoff",
    "protocol.wire.moves",
    "mesh.agent.values",
    "mesh.agent.turn",
    "mesh.model",
)
"""In search order: the last ones load the bus and what models need."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in map(import_module, _HOMES):
            if name in vars(home):
                return vars(home)[name]
    raise AttributeError(f"module 'mesh.agent' has no attribute {name!r}")
