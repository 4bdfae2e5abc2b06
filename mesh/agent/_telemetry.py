"""What an agent's process tells of its work: spans of rounds, proposals and steps, and how long they took.

Names, ids and codes alone go into it. A model may ask for an agent that there is not; only those of the
fleet are named.
"""

import time
from contextlib import AbstractContextManager

from opentelemetry.trace import Span, get_current_span

from mesh.agent.definition import Agent
from mesh.bus.consumer import Message
from mesh.service import telemetry, tracing
from protocol.wire.commands import (
    Escalate,
    HandBack,
    MoveProposed,
    Proposal,
    ReportFailure,
    Transfer,
    UnknownMove,
)
from protocol.wire.config import Fleet
from protocol.wire.events import Assignment
from protocol.wire.ids import HUMAN
from protocol.wire.journal_records import Record

_SENDS = {
    tracing.SYSTEM: tracing.NATS,
    tracing.MESSAGING_OPERATION: tracing.SEND,
    tracing.DESTINATION: "mesh.prop.{sender}.{request}",
}
_STRANGER = "unknown"


def came_with(message: Message, recorded: str) -> str:
    """Return the `traceparent` of an inbox event: its header's, or the one that it holds itself."""
    return tracing.brought(message.headers) or tracing.sound(recorded)


def round_span(
    agent: Agent, message: Message, request: str, work: Assignment, trace: str
) -> AbstractContextManager[Span]:
    """Open the span of one delivery of a round, and count how long the event waited for its first one.

    Args:
        trace: `traceparent` of the event that opened it.
    """
    if message.delivered == 1:
        waited_s = max(0.0, time.time() - message.stored_us / 1e6)
        telemetry.queue_time.record(waited_s, {tracing.AGENT: agent.name})
    tracing.conversation.set(request)  # in this delivery's own task
    if not tracing.traced():
        return tracing.OFF
    said: dict[str, str | int] = {
        tracing.OPERATION: tracing.INVOKE_AGENT,
        tracing.AGENT: agent.name,
        tracing.AGENT_VERSION: agent.version,
        tracing.CONVERSATION: request,
        tracing.REQUEST: request,
        tracing.TURN: work.turn,
        tracing.ROUND: work.round,
        tracing.DEPTH: work.depth,
        tracing.DELIVERY: message.delivered,
    }
    return tracing.span(f"{tracing.INVOKE_AGENT} {agent.name}", parent=trace, came=trace, attributes=said)


def proposal_span(
    agent: Agent, request: str, proposal: Proposal, fleet: Fleet
) -> AbstractContextManager[Span]:
    """Open the span in which a proposal is stored: for a handoff that of a tool, as GenAI has it."""
    if not tracing.traced():
        return tracing.OFF
    asked = _asked(proposal)
    said: dict[str, str | int] = {
        tracing.AGENT: agent.name,
        tracing.CONVERSATION: request,
        tracing.REQUEST: request,
        tracing.TURN: proposal.turn,
        tracing.ROUND: proposal.round,
        tracing.MOVE: asked,
    }
    turn = get_current_span()
    turn.set_attribute(tracing.MOVE, asked)
    if isinstance(proposal, ReportFailure):
        tracing.failed(turn, proposal.error.code)
    target, tool = "", ""
    match proposal.move if isinstance(proposal, MoveProposed) else None:
        case Transfer(to_agent=wanted):
            target = str(wanted) if wanted in fleet.agents else _STRANGER
            tool = f"transfer_to_{target}"
        case Escalate():
            target, tool = HUMAN, f"transfer_to_{HUMAN}"
        case HandBack():  # to whom, the guard finds out
            tool = "hand_back"
        case _:
            return tracing.span(tracing.SUBMIT, tracing.PRODUCER, attributes={**said, **_SENDS})
    said |= {
        tracing.OPERATION: tracing.EXECUTE_TOOL,
        tracing.TOOL: tool,
        tracing.TRANSFER_MODE: tracing.PASS_CONTROL,
    }
    if target:
        said[tracing.TRANSFER_TARGET] = target
    name = f"{tracing.EXECUTE_TOOL} {tool} {target}".strip()
    return tracing.span(name, attributes=said)


def proposed(agent: Agent, proposal: Proposal, took_s: float) -> None:
    """Count a round that came to a proposal, which is stored now."""
    labels = {tracing.AGENT: agent.name, tracing.MOVE: _asked(proposal)}
    telemetry.turn_duration.record(took_s, labels)


def _asked(proposal: Proposal) -> str:
    if isinstance(proposal, MoveProposed):
        unknown = isinstance(proposal.move, UnknownMove)
        return "unknown" if unknown else str(proposal.move.__struct_config__.tag)
    return str(proposal.__struct_config__.tag)


_TOOLS = ("call", "effect")


def tool_span(agent: str, request: str, tool: str) -> AbstractContextManager[Span]:
    """Open the span of one run of a tool. What it is called with and what it returns are not told."""
    if not tracing.traced():
        return tracing.OFF
    said = {
        tracing.OPERATION: tracing.EXECUTE_TOOL,
        tracing.TOOL: tool,
        tracing.AGENT: agent,
        tracing.CONVERSATION: request,
        tracing.REQUEST: request,
    }
    return tracing.span(f"{tracing.EXECUTE_TOOL} {tool}", attributes=said)


def replayed(step: str, record: Record) -> None:
    """Mark in the round's span that a step was taken from the journal: nothing ran."""
    if not tracing.traced():
        return
    said = {tracing.STEP: step, tracing.KIND: record.kind}
    if record.kind in _TOOLS:
        said[tracing.TOOL] = record.name
    tracing.happened(tracing.REPLAYED, said)
