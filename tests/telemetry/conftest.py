"""Fixtures: what this process traces and measures, kept in memory, and a stage on which it does so."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mesh.telemetry import tracing
from mesh.testing import EmbeddedBus
from tests.guard.stage import Stage, furnished_mesh, staged
from tests.telemetry.seen import Readings, Seen


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """What is traced from here on. A process has one provider for good, so that it is put in by hand."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with monkeypatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", provider)
        assert tracing.probe()
        yield Seen(kept)
        provider.shutdown()
    assert not tracing.probe()


@pytest.fixture
def readings() -> Iterator[Readings]:
    """What is measured from here on."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    metrics._internal._PROXY_METER_PROVIDER.on_set_meter_provider(provider)
    yield Readings(reader)
    provider.shutdown()


@pytest_asyncio.fixture
async def untraced_stage(furnished: EmbeddedBus) -> AsyncIterator[Stage]:
    """A stage with a guard in a process that traces nothing."""
    async with staged(furnished, guards=1) as own:
        yield own


@pytest_asyncio.fixture
async def stage(seen: Seen, readings: Readings, untraced_stage: Stage) -> Stage:
    """A stage with a guard, all of it traced; every log is judged again when it ends."""
    tracing.probe()
    return untraced_stage


@pytest_asyncio.fixture
async def own_mesh(tmp_path: Path) -> AsyncIterator[EmbeddedBus]:
    async with furnished_mesh(tmp_path / "mesh") as mesh:
        yield mesh
