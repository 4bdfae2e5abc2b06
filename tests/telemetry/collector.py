"""A collector on loopback that takes OTLP over HTTP and keeps what it gets."""

import http.server
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Sent(NamedTuple):
    """A span as it went over the wire."""

    service: str
    instance: str
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]


class Collector:
    """`with Collector() as collector:` then `collector.url`. A silent one hears and never answers."""

    def __init__(self, *, silent: bool = False) -> None:
        self.bodies: list[bytes] = []
        """Everything that was sent, as it came."""
        self.metrics: set[str] = set()
        """Names of metrics."""
        self._spans: list[Sent] = []
        self._released = threading.Event()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if silent:
                    collector._released.wait()
                    return
                collector._take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _take(self, path: str, body: bytes) -> None:
        self.bodies.append(body)
        if path == "/v1/traces":
            self._spans.extend(_spans(ExportTraceServiceRequest.FromString(body)))
        elif path == "/v1/metrics":
            said = ExportMetricsServiceRequest.FromString(body)
            scopes = (scope for each in said.resource_metrics for scope in each.scope_metrics)
            self.metrics.update(metric.name for scope in scopes for metric in scope.metrics)

    def of(self, request: str) -> list[Sent]:
        """Return the spans about one request."""
        return [span for span in self._spans if span.attributes.get("mesh.request") == request]


def _spans(said: ExportTraceServiceRequest) -> Iterator[Sent]:
    for each in said.resource_spans:
        about = _attributes(each.resource.attributes)
        for scope in each.scope_spans:
            for span in scope.spans:
                yield Sent(
                    service=about["service.name"],
                    instance=about["service.instance.id"],
                    name=span.name,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    attributes=_attributes(span.attributes),
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in pairs}
