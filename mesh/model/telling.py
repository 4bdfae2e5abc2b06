"""What the loop tells of model calls: a span where the vendor's SDK makes none, tokens and money.

A reply that is read from the journal was told of when it was paid for; here it is told of no second time.
"""

from contextlib import AbstractContextManager

from opentelemetry.trace import Span

from mesh.model.port import Model, Reply
from mesh.service import metrics, names, tracing
from protocol.wire.commands import Usage

_KINDS = ("input", "cache_read", "cache_write", "cache_write_1h", "output")
_NANO = 1e-9


def reply_span(model: Model, agent: str, request: str) -> AbstractContextManager[Span]:
    """Open the span of one call, unless the model's own SDK does so (`makes_spans`): no call has two."""
    if not tracing.traced() or getattr(model, "makes_spans", False):
        return tracing.OFF
    said = {
        names.OPERATION: names.CHAT,
        names.REQUEST_MODEL: model.mode,
        names.AGENT: agent,
        names.CONVERSATION: request,
        names.REQUEST: request,
    }
    return tracing.span(f"{names.CHAT} {model.mode}", tracing.CLIENT, attributes=said)


def replied(span: Span, model: Model, agent: str, reply: Reply, spent: Usage) -> None:
    """Tell of a fresh reply.

    Args:
        span: as `reply_span` gave it.
        spent: what it cost.
    """
    name = reply.model or model.mode
    if span.is_recording():
        span.set_attributes(
            {
                names.RESPONSE_MODEL: name,
                names.INPUT_TOKENS: reply.tokens.prompt,
                names.OUTPUT_TOKENS: reply.tokens.output,
            }
        )
    labels = {names.AGENT: agent, names.MODEL: name}
    for kind in _KINDS:
        if count := getattr(reply.tokens, kind):
            metrics.tokens.add(count, {**labels, names.KIND: kind})
    if not reply.tokens.total and spent.tokens:
        metrics.tokens.add(spent.tokens, {**labels, names.KIND: "all"})
    if spent.nano_dollars > 0:
        metrics.cost.add(spent.nano_dollars * _NANO, labels)
