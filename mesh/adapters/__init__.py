"""Agents of other SDKs as agents of a mesh: their model and tool calls become steps, their handoffs moves.

from mesh.adapters.pydantic_ai import mesh_agent

billing = mesh_agent("billing", existing, effects={"refund": "idempotent"}, handoffs=["triage"])

Each SDK has a module and an extra of its own; this one loads none of them. `current_turn` and
`idempotency_key` are for the existing agent's own code, its tools and instructions.
"""

from mesh.adapters._round import SdkNotInstalled
from mesh.adapters._tool import current_turn, idempotency_key

__all__ = ["SdkNotInstalled", "current_turn", "idempotency_key"]
