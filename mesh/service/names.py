"""Every name of a span, an attribute and a metric, in one place.

GenAI names follow `open-telemetry/semantic-conventions-genai`, which is in development: those of a transfer
are as proposed in its pull request 447 (read in September 2026) and may move. Messaging names follow the
semantic conventions 1.44. What begins with `mesh.` is ours and will not move.
"""

from typing import Final

SCOPE: Final = "handoff-mesh"

# --- spans ----------------------------------------------------------------------------------------

SUBMIT: Final = "send mesh.prop"
"""A client's submit, and what an agent proposes that moves no work to another."""
SEND_CONTROL: Final = "send mesh.ctl"
VERDICT: Final = "process mesh.prop"
CONTROL: Final = "process mesh.ctl"
CONSEQUENCE: Final = "process mesh.timer"
INVOKE_AGENT: Final = "invoke_agent"
"""Followed by the agent's name."""
EXECUTE_TOOL: Final = "execute_tool"
"""Followed by the tool's name; for a handoff by `transfer_to_<agent> <agent>`."""
CHAT: Final = "chat"
"""Followed by the model's name."""

# --- events of spans ------------------------------------------------------------------------------

REPLAYED: Final = "mesh.step.replayed"

# --- attributes: GenAI ----------------------------------------------------------------------------

OPERATION: Final = "gen_ai.operation.name"
AGENT: Final = "gen_ai.agent.name"
AGENT_VERSION: Final = "gen_ai.agent.version"
CONVERSATION: Final = "gen_ai.conversation.id"
TOOL: Final = "gen_ai.tool.name"
TRANSFER_MODE: Final = "gen_ai.transfer.mode"
TRANSFER_TARGET: Final = "gen_ai.transfer.target.name"
PASS_CONTROL: Final = "pass_control"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR: Final = "error.type"

# --- attributes: messaging ------------------------------------------------------------------------

SYSTEM: Final = "messaging.system"
NATS: Final = "nats"
MESSAGING_OPERATION: Final = "messaging.operation.type"
SEND: Final = "send"
PROCESS: Final = "process"
DESTINATION: Final = "messaging.destination.template"

# --- attributes: ours -----------------------------------------------------------------------------

REQUEST: Final = "mesh.request"
TURN: Final = "mesh.turn"
ROUND: Final = "mesh.round"
EVENT: Final = "mesh.event"
EVENT_TYPE: Final = "mesh.event.type"
MOVE: Final = "mesh.move"
"""What was asked for: `submit`, a move, `turn_failed`, `effect_doubted`, or a control message's kind."""
VERDICT_IS: Final = "mesh.verdict"
"""`admitted`, `refused`, `deferred`, `recorded`, `late` or `objected`."""
RULE: Final = "mesh.rule"
REJECTION: Final = "mesh.rejection"
DEPTH: Final = "mesh.depth"
FROM: Final = "mesh.from"
TO: Final = "mesh.to"
DELIVERY: Final = "mesh.delivery"
STEP: Final = "mesh.step"
KIND: Final = "mesh.kind"
MODEL: Final = "mesh.model"
STATUS: Final = "mesh.status"
CODE: Final = "mesh.code"
BY: Final = "mesh.by"

# --- metrics --------------------------------------------------------------------------------------

HANDOFFS: Final = "mesh.handoffs"
TURN_DURATION: Final = "mesh.turn.duration"
QUEUE_TIME: Final = "mesh.queue.time"
TOKENS: Final = "mesh.tokens"
COST: Final = "mesh.cost"
OPEN_REQUESTS: Final = "mesh.requests.open"
OPENED_REQUESTS: Final = "mesh.requests.opened"
ENDED_REQUESTS: Final = "mesh.requests.ended"
DEAD_LETTERS: Final = "mesh.dead_letters"
DROPPED_DELIVERIES: Final = "mesh.deliveries.dropped"
GUARD_LAG: Final = "mesh.guard.lag"
