"""What the environment asks for, what is missing, and that off means off."""

import subprocess
import sys
from collections.abc import Mapping

import pytest

from mesh.telemetry import export as setup
from mesh.telemetry.export import TelemetryUnavailable, configure_telemetry
from tests.servers import PATIENCE_S, ROOT

BOTH = ("TRACES", "METRICS")
HERE = "http://127.0.0.1:4318"


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        pytest.param({}, (), id="nothing"),
        pytest.param({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, (), id="empty"),
        pytest.param({"OTEL_EXPORTER_OTLP_ENDPOINT": HERE}, BOTH, id="both"),
        pytest.param({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": HERE}, ("TRACES",), id="traces"),
        pytest.param({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": HERE}, ("METRICS",), id="metrics"),
        pytest.param(
            {"OTEL_EXPORTER_OTLP_ENDPOINT": HERE, "OTEL_METRICS_EXPORTER": "none"}, ("TRACES",), id="none"
        ),
        pytest.param({"OTEL_EXPORTER_OTLP_ENDPOINT": HERE, "OTEL_SDK_DISABLED": "true"}, (), id="disabled"),
        pytest.param(
            {"OTEL_EXPORTER_OTLP_ENDPOINT": HERE, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            BOTH,
            id="protocol",
        ),
    ],
)
def test_the_environment_says_what_goes_out(environment: Mapping[str, str], wanted: tuple[str, ...]) -> None:
    assert setup._wanted(environment) == wanted


def test_another_protocol_is_refused() -> None:
    with pytest.raises(TelemetryUnavailable, match="http/protobuf only, not as 'grpc'"):
        setup._wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": HERE, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"})


def test_a_collector_without_the_extra_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", HERE)
    monkeypatch.setattr(setup, "_installed", lambda module: False)
    unavailable = pytest.raises(TelemetryUnavailable, match=r"pip install 'handoff-mesh\[otel\]'")
    with unavailable, configure_telemetry("mesh-guard"):
        pass


def test_a_page_without_the_extra_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.setattr(setup, "_installed", lambda module: False)
    with configure_telemetry("mesh-guard", prometheus=True) as page:
        assert page is None


_OFF = """
import sys
from mesh.telemetry import tracing
from mesh.telemetry.export import configure_telemetry
with configure_telemetry("mesh-guard") as page:
    assert page is None and not tracing.traced()
    with tracing.span("x", parent="rubbish", attributes={}) as span:
        assert not span.is_recording()
    assert (tracing.current(), tracing.headers(), tracing.current("other")) == ("", {}, "other")
print(sorted(name for name in sys.modules if name.startswith("opentelemetry.sdk")))
"""


def test_off_means_that_the_sdk_is_not_even_imported() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _OFF],
        cwd=ROOT,
        env={},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert ended.stdout.strip() == "[]"


def test_an_end_that_hangs_is_left_behind() -> None:
    import threading

    hangs, ended = threading.Event(), threading.Event()
    setup._end((hangs.wait, ended.set), within_s=0.05)
    assert ended.is_set()
    hangs.set()
