"""Spans: their names and attributes, and the W3C `traceparent` that carries them between processes.

A request is one trace through all processes. The header of each message names its span. Each event repeats it
in its body, because an exported log has no headers.

`probe` finds out once whether this process traces, when a client, a guard or an agent begins. With telemetry
off, asking each time would be a guard's largest cost of telemetry. A process traces only if other code has
loaded OpenTelemetry's API.

GenAI names follow `open-telemetry/semantic-conventions-genai`, which is in development. The names for a
transfer are those of its pull request 447 (read in September 2026) and may change. Messaging names follow the
semantic conventions 1.44. Names that begin with `mesh.` are ours and will not change.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal

from mesh.errors import MeshError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span

SCOPE: Final = "handoff-mesh"

# --- names of spans, of their events and of attributes: GenAI's, messaging's, ours ----------------

SUBMIT: Final = "send mesh.prop"
"""A client's submit, or a proposal of an agent that moves no work to another."""
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
REPLAYED: Final = "mesh.step.replayed"
OPERATION: Final = "gen_ai.operation.name"
AGENT: Final = "gen_ai.agent.name"
AGENT_VERSION: Final = "gen_ai.agent.version"
CONVERSATION: Final = "gen_ai.conversation.id"
TOOL: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
FUNCTION: Final = "function"
TOOL_CALL: Final = "gen_ai.tool.call.id"
PROVIDER: Final = "gen_ai.provider.name"
"""The vendor of a model, by GenAI's names; `custom` for a model that names none."""
TRANSFER_MODE: Final = "gen_ai.transfer.mode"
TRANSFER_TARGET: Final = "gen_ai.transfer.target.name"
PASS_CONTROL: Final = "pass_control"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"
SERVER: Final = "server.address"
"""The host where a model's vendor is asked."""
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR: Final = "error.type"
SYSTEM: Final = "messaging.system"
NATS: Final = "nats"
MESSAGING_OPERATION: Final = "messaging.operation.type"
OPERATION_NAME: Final = "messaging.operation.name"
SEND: Final = "send"
PROCESS: Final = "process"
DESTINATION: Final = "messaging.destination.template"
DESTINATION_NAME: Final = "messaging.destination.name"
REQUEST: Final = "mesh.request"
TURN: Final = "mesh.turn"
ROUND: Final = "mesh.round"
EVENT: Final = "mesh.event"
EVENT_TYPE: Final = "mesh.event.type"
MOVE: Final = "mesh.move"
"""What was asked for: `submit`, a move, `turn_failed`, `effect_doubted`, or a control message's kind."""
VERDICT_IS: Final = "mesh.verdict"
"""`admitted`, `refused`, `deferred`, `recorded`, `late` or `rejected`."""
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
POLICY: Final = "mesh.policy"
OUTCOME: Final = "mesh.outcome"


def messaging(operation: str, template: str, **named: str) -> dict[str, str]:
    """Return the attributes that messaging's conventions give a span about one message.

    Args:
        operation: `SEND` or `PROCESS`.
        template: the subject, with places for names.
        named: the names, if all of them are known.
    """
    found = {SYSTEM: NATS, MESSAGING_OPERATION: operation, OPERATION_NAME: operation, DESTINATION: template}
    return found | ({DESTINATION_NAME: template.format(**named)} if named else {})


# --- the tracer -----------------------------------------------------------------------------------

HEADER = "traceparent"
Kind = Literal["CLIENT", "CONSUMER", "INTERNAL", "PRODUCER"]
CLIENT: Kind = "CLIENT"
CONSUMER: Kind = "CONSUMER"
INTERNAL: Kind = "INTERNAL"
PRODUCER: Kind = "PRODUCER"
"""A span's kind, by the name of OpenTelemetry's `SpanKind`."""
Attributes = Mapping[str, str | int | float | bool]

conversation: ContextVar[str] = ContextVar("mesh_conversation", default="")
"""The request that the current code works on, for the spans of a model vendor's own SDK."""

_WELL_FORMED = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_API = "opentelemetry.trace"


class _NoSpan:
    """Accepts what a span accepts, and keeps nothing."""

    def is_recording(self) -> bool:
        return False

    def set_attribute(self, key: str, value: object) -> None: ...

    def set_attributes(self, attributes: Mapping[str, object]) -> None: ...


OFF: "AbstractContextManager[Any]" = nullcontext(_NoSpan())
"""A span that keeps nothing."""
_on = False


def probe() -> bool:
    """Return True if this process has a tracer that keeps anything, and remember it for `traced`."""
    global _on
    _on = False
    if _API in sys.modules or any(name.startswith("OTEL_") for name in os.environ):
        from opentelemetry import trace

        _on = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    return _on


def traced() -> bool:
    """Return True if this process traces, as `probe` last found."""
    return _on


# --- traceparent ----------------------------------------------------------------------------------


def well_formed(traceparent: str | None) -> str:
    """Return a `traceparent` that can be passed on; empty for an invalid value from a sender."""
    return traceparent if traceparent and _WELL_FORMED.fullmatch(traceparent) else ""


def traceparent_in(headers: Mapping[str, str]) -> str:
    """Return the `traceparent` in a message's headers; empty without a well-formed one."""
    return well_formed(headers.get(HEADER))


def current(otherwise: str = "") -> str:
    """Return the current span's `traceparent`; `otherwise` if nothing is traced."""
    if not _on:
        return otherwise
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(HEADER, otherwise)


def headers(otherwise: str = "") -> dict[str, str]:
    """Return the header for a message sent now: the current span's, or `otherwise` passed on."""
    found = current(otherwise)
    return {HEADER: found} if found else {}


# --- spans ----------------------------------------------------------------------------------------


def span(
    name: str,
    kind: Kind = INTERNAL,
    *,
    parent: str = "",
    came: str = "",
    attributes: Attributes | None = None,
) -> "AbstractContextManager[Span]":
    """Run something as a span, the current one meanwhile. An error is recorded only by its code.

    Args:
        parent: a `traceparent`; the span is its child. Empty: a child of the current span, or the first of a
            new trace.
        came: the `traceparent` that came with a message; the span is linked to it.
    """
    return _opened(name, kind, parent, came, attributes) if _on else OFF


@contextmanager
def _opened(name: str, kind: Kind, parent: str, came: str, attributes: Attributes | None) -> "Iterator[Span]":
    from opentelemetry import trace

    with trace.get_tracer(SCOPE).start_as_current_span(
        name,
        context=_context(parent),
        kind=trace.SpanKind[kind],
        attributes=attributes,
        links=_links(came),
        record_exception=False,  # a traceback may hold what a person wrote
        set_status_on_exception=False,
    ) as opened:
        try:
            yield opened
        except BaseException as error:
            failed(opened, error.code if isinstance(error, MeshError) else type(error).__name__)
            raise


def _context(parent: str) -> "Context | None":
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({HEADER: parent}) if parent else None


def _links(came: str) -> "list[Link]":
    from opentelemetry.trace import Link, get_current_span

    context = _context(came)
    return [] if context is None else [Link(get_current_span(context).get_span_context())]


def failed(opened: "Span", code: str) -> None:
    """Mark a span as failed, by a code."""
    if not _on:
        return
    from opentelemetry.trace import Status, StatusCode

    opened.set_status(Status(StatusCode.ERROR))
    opened.set_attribute(ERROR, code)


def happened(name: str, attributes: Attributes) -> None:
    """Add an event to the current span."""
    if _on:
        from opentelemetry.trace import get_current_span

        get_current_span().add_event(name, attributes)


# --- logs -----------------------------------------------------------------------------------------


def add_ids(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the current span's ids to a log line: a processor of structlog's."""
    if _on:
        from opentelemetry import trace

        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            line["trace_id"] = trace.format_trace_id(context.trace_id)
            line["span_id"] = trace.format_span_id(context.span_id)
    return line
