"""Metrics: what is counted and timed, and their export if the environment asks for it.

Labels of metrics are names of agents, models, rules and codes: a small, known number.

The variables are OpenTelemetry's own. The SDK is imported only if something asks for it. Exporters work in
their own threads with bounded queues: a collector that is slow or gone costs spans, never a turn.
"""

import importlib.util
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace

from mesh.errors import MeshError
from mesh.service.conditions import ProbeAnswer, Show
from mesh.service.logs import get_logger
from mesh.telemetry import tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

_log = get_logger(__name__)

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
SIGNALS = ("TRACES", "METRICS")
PROTOCOL = "http/protobuf"
_NO_METER = "_ProxyMeterProvider"
"""The class of the API's default provider."""
FLUSH_S = 2.0
"""How long a process that ends may wait for its collector (s)."""
EXTRA = "handoff-mesh[otel]"

# --- metrics --------------------------------------------------------------------------------------

_meter = metrics.get_meter(tracing.SCOPE)
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""Bounds of the histograms' buckets: from a decision's milliseconds to a turn's longest time."""


def _seconds(name: str, description: str) -> metrics.Histogram:
    return _meter.create_histogram(
        name, unit="s", description=description, explicit_bucket_boundaries_advisory=_SECONDS
    )


def _count(name: str, unit: str, description: str) -> metrics.Counter:
    return _meter.create_counter(name, unit=unit, description=description)


turn_duration = _seconds("mesh.turn.duration", "From a round's delivery to its stored proposal")
queue_time = _seconds("mesh.queue.time", "From an event in an inbox to its first delivery")
guard_lag = _seconds("mesh.guard.lag", "From a message stored, or asked on the lane, to its decision")
handoffs = _count("mesh.handoffs", "{handoff}", "Proposals by verdict and rule")
tokens = _count("mesh.tokens", "{token}", "Tokens by agent, model and kind")
model_duration = _meter.create_histogram(
    "gen_ai.client.operation.duration",
    unit="s",
    description="A model call",
    explicit_bucket_boundaries_advisory=[0.01 * 2**power for power in range(14)],
)
model_tokens = _meter.create_histogram(
    "gen_ai.client.token.usage",
    unit="{token}",
    description="Tokens of a model call, by type",
    explicit_bucket_boundaries_advisory=[4**power for power in range(14)],
)
cost = _count("mesh.cost", "USD", "Cost of model calls by agent and model")
opened_requests = _count("mesh.requests.opened", "{request}", "Requests that began")
ended_requests = _count("mesh.requests.ended", "{request}", "Requests by their end")
questions = _count("mesh.lane.questions", "{message}", "Messages asked on the lane, by what came of it")
shadow_verdicts = _count("mesh.shadow.verdicts", "{command}", "Commands judged by a shadow, by policy")
dead_letters = _count("mesh.dead_letters", "{message}", "Dead letters by code")
dropped_deliveries = _count(
    "mesh.deliveries.dropped", "{message}", "Messages in a service's inbox that its consumer did not send"
)

# --- the SDK --------------------------------------------------------------------------------------


class TelemetryUnavailable(MeshError, code="telemetry.unavailable"):
    """Telemetry was asked for and is not available; the text names what is missing."""


@contextmanager
def configure_telemetry(service: str, *, prometheus: bool = False) -> Iterator[Show | None]:
    """Switch on what the environment asks for; at the end, send the rest.

    A provider that is set already stays, and counts as on. Yields the maker of the page for Prometheus, if
    there is one.

    Args:
        service: `service.name`, unless OTEL_SERVICE_NAME has another.
        prometheus: True to keep metrics for a page as well, if the SDK is installed.

    Raises TelemetryUnavailable if the environment names a collector and the SDK is not installed, or asks for
    an unsupported protocol.
    """
    wanted = _wanted(os.environ)
    if wanted and not _installed("opentelemetry.exporter.otlp.proto.http"):
        raise TelemetryUnavailable(
            f"{ENDPOINT} is set, and the exporter is not installed: pip install '{EXTRA}'"
        )
    with_page = prometheus and not _disabled(os.environ) and _installed("opentelemetry.exporter.prometheus")
    page: Show | None = None
    ends: list[Callable[[], Any]] = []
    if wanted or with_page:
        resource = _resource(service)
        if "TRACES" in wanted and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            ends.append(_export_traces(resource))
        if not is_measured():
            ends.append(_export_metrics(resource, otlp="METRICS" in wanted, page=with_page))
            page = _page if with_page else None
    tracing.probe()
    try:
        yield page
    finally:
        _end(ends)


def _end(ends: Sequence[Callable[[], Any]], within_s: float = FLUSH_S) -> None:
    """Send the rest within this time (s); the remainder is lost."""
    # They wait for their own threads, longer than asked: a late one is left behind.
    ending = [threading.Thread(target=end, daemon=True) for end in ends]
    for each in ending:
        each.start()
    until = time.monotonic() + within_s
    for each in ending:
        each.join(max(0.0, until - time.monotonic()))
    if any(each.is_alive() for each in ending):
        _log.warning("telemetry_not_flushed", waited_s=within_s)


def is_measured() -> bool:
    """Return True if this process has a meter that keeps anything."""
    return type(metrics.get_meter_provider()).__name__ != _NO_METER


def _disabled(environment: Mapping[str, str]) -> bool:
    return environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _wanted(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the signals that have a collector."""
    if _disabled(environment):
        return ()
    found = tuple(
        signal
        for signal in SIGNALS
        if (environment.get(ENDPOINT) or environment.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"))
        and environment.get(f"OTEL_{signal}_EXPORTER", "otlp").strip().lower() != "none"
    )
    for signal in found:
        spoken = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or environment.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL"
        )
        if spoken and spoken.strip().lower() != PROTOCOL:
            raise TelemetryUnavailable(f"OTLP goes out as {PROTOCOL} only, not as {spoken!r}")
    return found


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _resource(service: str) -> "Resource":
    from opentelemetry.sdk.resources import Resource

    attributes = {
        "service.namespace": "handoff-mesh",
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
    }
    if not os.environ.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = service
    return Resource.create(attributes)


class _Reporting:
    """An exporter that logs once when its collector stops taking data, and once when it takes data again.

    The exporter's own lines, a few for every attempt, are dropped.
    """

    def __init__(self, signal: str, exporter: Any) -> None:
        self._signal, self._exporter, self._away = signal, exporter, False
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    def export(self, *arguments: Any, **named: Any) -> Any:
        result = self._exporter.export(*arguments, **named)
        away = result.name != "SUCCESS"
        if away and not self._away:
            _log.warning("telemetry_not_exported", signal=self._signal)
        elif self._away and not away:
            _log.info("telemetry_exported", signal=self._signal)
        self._away = away
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)


def _export_traces(resource: "Resource") -> Callable[[], Any]:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter: Any = _Reporting("traces", OTLPSpanExporter())
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _export_metrics(resource: "Resource", *, otlp: bool, page: bool) -> Callable[[], Any]:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

    readers: list[MetricReader] = []
    if otlp:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        exporter: Any = _Reporting("metrics", OTLPMetricExporter())
        readers.append(PeriodicExportingMetricReader(exporter))
    if page:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader

        readers.append(PrometheusMetricReader(scope_info_enabled=False))
    provider = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
    metrics.set_meter_provider(provider)
    return provider.shutdown


def _page() -> ProbeAnswer:
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return ProbeAnswer(200, generate_latest(), CONTENT_TYPE_LATEST)
