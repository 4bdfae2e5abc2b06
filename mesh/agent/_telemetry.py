"""What an agent's process tells of its work: spans of rounds, proposals and steps, and how long they took.

Names, ids and codes alone go into it. A model may ask for an agent that there is not; only those of the
fleet are named.
"""

import time
from contextlib import AbstractContextManager

from opentelemetry.trace import Span, get_current_span

from mesh.agent.definition import Agent
from mesh.bus.consumer import Message
from mesh.service import metrics, names, tracing
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
    names.SYSTEM: names.NATS,
    names.MESSAGING_OPERATION: names.SEND,
    names.DESTINATION: "mesh.prop.{sender}.{request}",
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
        metrics.queue_time.record(waited_s, {names.AGENT: agent.name})
    tracing.conversation.set(request)  # in this delivery's own task
    if not tracing.traced():
        return tracing.OFF
    said: dict[str, str | int] = {
        names.OPERATION: names.INVOKE_AGENT,
        names.AGENT: agent.name,
        names.AGENT_VERSION: agent.version,
        names.CONVERSATION: request,
        names.REQUEST: request,
        names.TURN: work.turn,
        names.ROUND: work.round,
        names.DEPTH: work.depth,
        names.DELIVERY: message.delivered,
    }
    return tracing.span(f"{names.INVOKE_AGENT} {agent.name}", parent=trace, came=trace, attributes=said)


def proposal_span(
    agent: Agent, request: str, proposal: Proposal, fleet: Fleet
) -> AbstractContextManager[Span]:
    """Open the span in which a proposal is stored: for a handoff that of a tool, as GenAI has it."""
    if not tracing.traced():
        return tracing.OFF
    asked = _asked(proposal)
    said: dict[str, str | int] = {
        names.AGENT: agent.name,
        names.CONVERSATION: request,
        names.REQUEST: request,
        names.TURN: proposal.turn,
        names.ROUND: proposal.round,
        names.MOVE: asked,
    }
    turn = get_current_span()
    turn.set_attribute(names.MOVE, asked)
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
            return tracing.span(names.SUBMIT, tracing.PRODUCER, attributes={**said, **_SENDS})
    said |= {
        names.OPERATION: names.EXECUTE_TOOL,
        names.TOOL: tool,
        names.TRANSFER_MODE: names.PASS_CONTROL,
    }
    if target:
        said[names.TRANSFER_TARGET] = target
    name = f"{names.EXECUTE_TOOL} {tool} {target}".strip()
    return tracing.span(name, attributes=said)


def proposed(agent: Agent, proposal: Proposal, took_s: float) -> None:
    """Count a round that came to a proposal, which is stored now."""
    labels = {names.AGENT: agent.name, names.MOVE: _asked(proposal)}
    metrics.turn_duration.record(took_s, labels)


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
        names.OPERATION: names.EXECUTE_TOOL,
        names.TOOL: tool,
        names.AGENT: agent,
        names.CONVERSATION: request,
        names.REQUEST: request,
    }
    return tracing.span(f"{names.EXECUTE_TOOL} {tool}", attributes=said)


def replayed(step: str, record: Record) -> None:
    """Mark in the round's span that a step was taken from the journal: nothing ran."""
    if not tracing.traced():
        return
    said = {names.STEP: step, names.KIND: record.kind}
    if record.kind in _TOOLS:
        said[names.TOOL] = record.name
    tracing.happened(names.REPLAYED, said)
