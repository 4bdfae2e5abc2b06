"""Spans, and the W3C `traceparent` that carries them from one process to the next.

A request is one trace, whoever works on it: each message's header names the span that it came from, and
each event holds the same in its body, since headers are lost when a log is exported.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mesh.errors import MeshError
from mesh.telemetry import names

HEADER = "traceparent"
_WELL_FORMED = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_W3C = TraceContextTextMapPropagator()
_tracer = trace.get_tracer(names.SCOPE)
Attributes = Mapping[str, str | int | float | bool]


def traced() -> bool:
    """Say whether this process has a tracer that keeps anything."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def sound(traceparent: str | None) -> str:
    """Return a `traceparent` as it may go on; empty for anything else that a sender calls so."""
    return traceparent if traceparent and _WELL_FORMED.fullmatch(traceparent) else ""


def current() -> str:
    """Return the current span's `traceparent`; empty where nothing is traced."""
    if not traced():
        return ""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier)
    return carrier.get(HEADER, "")


def headers(otherwise: str = "") -> dict[str, str]:
    """Return the header for a message that is sent now: the current span's, or `otherwise` passed on."""
    found = current() or sound(otherwise)
    return {HEADER: found} if found else {}


@contextmanager
def span(
    name: str,
    kind: SpanKind = SpanKind.INTERNAL,
    *,
    parent: str = "",
    attributes: Attributes | None = None,
) -> Iterator[Span]:
    """Run something as a span, the current one meanwhile. An error is recorded by its code alone.

    Args:
        parent: the `traceparent` that a message brought; the span is its child, and linked to it. Empty:
            a child of the current span, or the first of a new trace.
    """
    if not traced():
        yield trace.INVALID_SPAN  # a span that keeps nothing costs ten times as much as none
        return
    context, links = _come_from(parent)
    with _tracer.start_as_current_span(
        name,
        context=context,
        kind=kind,
        attributes=attributes,
        links=links,
        record_exception=False,  # a traceback may hold what a person wrote
        set_status_on_exception=False,
    ) as opened:
        try:
            yield opened
        except BaseException as error:
            opened.set_status(Status(StatusCode.ERROR))
            opened.set_attribute(
                names.ERROR, error.code if isinstance(error, MeshError) else type(error).__name__
            )
            raise


def _come_from(parent: str) -> tuple[Context | None, list[Link]]:
    if not sound(parent):
        return None, []
    context = _W3C.extract({HEADER: parent})
    return context, [Link(trace.get_current_span(context).get_span_context())]
