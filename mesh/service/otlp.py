"""OTLP exporters that say once when their collector is away, and once when it is back.

The exporters' own words, a few lines for every attempt, are kept out of the log.
"""

import logging
from typing import Any

import structlog
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.trace.export import SpanExportResult

_log = structlog.get_logger(__name__)

logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)


class _Outage:
    """Whether what was sent last arrived."""

    def __init__(self, signal: str) -> None:
        self._signal = signal
        self._away = False

    def note(self, *, arrived: bool) -> None:
        if arrived and self._away:
            _log.info("telemetry_exported", signal=self._signal)
        elif not arrived and not self._away:
            _log.warning("telemetry_not_exported", signal=self._signal)
        self._away = not arrived


class Spans(OTLPSpanExporter):
    """Sends spans to where the environment says."""

    def __init__(self) -> None:
        super().__init__()
        self._outage = _Outage("traces")

    def export(self, spans: Any) -> SpanExportResult:
        result = super().export(spans)
        self._outage.note(arrived=result is SpanExportResult.SUCCESS)
        return result


class Metrics(OTLPMetricExporter):
    """Sends metrics to where the environment says."""

    def __init__(self) -> None:
        super().__init__()
        self._outage = _Outage("metrics")

    def export(
        self, metrics_data: Any, timeout_millis: float | None = 10_000, **more: Any
    ) -> MetricExportResult:
        result = super().export(metrics_data, timeout_millis, **more)
        self._outage.note(arrived=result is MetricExportResult.SUCCESS)
        return result
