"""Steps in a round's trace: a span for a tool that runs, a mark for a step that is only read back."""

from contextlib import AbstractContextManager

from opentelemetry.trace import Span

from mesh.agent.record import Record
from mesh.service import names, tracing

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
