"""What was exported, as tests ask about it."""

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.certain import known
from tests.servers import until


class Seen:
    """The spans that have ended."""

    def __init__(self, kept: InMemorySpanExporter) -> None:
        self._kept = kept

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return tuple(self._kept.get_finished_spans())

    def of(self, request: str) -> list[ReadableSpan]:
        """Return the spans about one request, by the time they began."""
        about = (span for span in self.all if said(span).get("mesh.request") == request)
        return sorted(about, key=lambda span: span.start_time or 0)

    def named(self, request: str, name: str) -> list[ReadableSpan]:
        return [span for span in self.of(request) if span.name == name]

    async def one(self, request: str, name: str, count: int = 1) -> ReadableSpan:
        """Wait until so many spans of this name have ended; return the last one."""
        await until(lambda: len(self.named(request, name)) >= count)
        return self.named(request, name)[-1]

    def text(self) -> str:
        """Return everything that was exported, as text."""
        return "\n".join(span.to_json() for span in self.all)


class Readings:
    """The metrics as they stand."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader

    def points(self, name: str) -> list[tuple[Mapping[str, Any], Any]]:
        """Return labels and value of each series of a metric; of a histogram the count."""
        data = self._reader.get_metrics_data()
        found: list[tuple[Mapping[str, Any], Any]] = []
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        found += [
                            (dict(point.attributes or {}), getattr(point, "count", None) or point.value)  # type: ignore[union-attr]
                            for point in metric.data.data_points
                        ]
        return found

    def value(self, name: str, **labels: str) -> Any:
        """Return the sum over all series that have these labels (`_` for the dots in their names)."""
        wanted = {key.replace("__", "."): value for key, value in labels.items()}
        return sum(
            value
            for known, value in self.points(name)
            if all(known.get(key) == label for key, label in wanted.items())
        )


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    return int(known(span.context).span_id)


def trace_of(span: ReadableSpan) -> str:
    return f"{known(span.context).trace_id:032x}"


def traceparent_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"00-{trace_of(span)}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"
