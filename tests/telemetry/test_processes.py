"""Services as users start them: one trace across processes, a page for Prometheus, ends that do not hang."""

import asyncio
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from mesh.bus.credentials import seed_file
from mesh.testing import EmbeddedBus
from tests.docs.pages import DOCS, commands
from tests.docs.reader import require_installed
from tests.servers import PATIENCE_S, ROOT, eventually, until
from tests.telemetry.collector import Collector
from tests.trouble.crew import STEADY, Crew, Service, furnish

CANARY = "xylophone"
INSTALL, _EXPORT, GUARD, AGENT, SEND = (
    shlex.split(command) for command, _ in commands((DOCS / "telemetry.md").read_text())
)
"""What docs/telemetry.md types to switch it on."""
ENDPOINT = _EXPORT[1]


def _here(command: list[str]) -> list[str]:
    """Return a command's arguments for this fleet, with ports that are free."""
    moved = {"agents.support.triage:agent": "tests.trouble.agents:a"}
    return [re.sub(r"^127\.0\.0\.1:\d+$", "127.0.0.1:0", moved.get(word, word)) for word in command[1:]]


def test_what_the_page_installs_is_what_the_suite_runs_with() -> None:
    require_installed(INSTALL[2:])


@pytest_asyncio.fixture
async def crew(tmp_path: Path) -> AsyncIterator[Crew]:
    async with EmbeddedBus(STEADY, tmp_path / "mesh") as mesh:
        await furnish(mesh)
        own = Crew(mesh, tmp_path)
        yield own
        await own.close()
        await mesh.server.kill()


async def send(crew: Crew, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `mesh send` as a process of its own."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("MESH_")}
    own = {
        "NATS_URL": crew.mesh.url,
        "MESH_NAME": "c1",
        "MESH_CREDENTIALS": str(seed_file(crew.directory / "mesh" / "keys", "c1")),
    }
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "mesh", "send", *arguments],
        env=inherited | own | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


async def page(service: Service, path: str = "/metrics") -> tuple[int, str]:
    url = (await service.says("health_listening"))[0]["url"]
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.decode()


async def test_a_request_is_one_trace_through_four_processes(crew: Crew) -> None:
    with Collector() as collector:
        told = {ENDPOINT.partition("=")[0]: collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        crew.environment |= {**told, "OTEL_METRIC_EXPORT_INTERVAL": "200", "MESH_LOG_LEVEL": "debug"}
        services = [
            await crew.start("guard", "g1", _here(GUARD)),
            await crew.start("a", "a", _here(AGENT)),
            await crew.agent("b"),
        ]
        await crew.all_ready()
        text = _here(SEND)[1]
        sent = await send(crew, f"{text} {CANARY}", "--fact", f"{CANARY}={CANARY}", "--json", **told)
        assert sent.returncode == 0, sent.stderr
        request = next(iter({span.attributes["mesh.request"] for span in collector._spans}))
        await until(lambda: len(collector.of(request)) >= 10, PATIENCE_S)
        await until(lambda: {"mesh.handoffs", "mesh.turn.duration"} <= collector.metrics, PATIENCE_S)
        spans = collector.of(request)
        for service in services:
            service.signal(signal.SIGTERM)
        assert [await service.ended() for service in services] == [0, 0, 0]
        exported = b"".join(collector.bodies)
    assert len({span.trace for span in spans}) == 1
    assert {(span.service, span.name) for span in spans} == {
        ("mesh-cli", "send mesh.prop"),
        ("mesh-guard", "process mesh.prop"),
        ("mesh-a", "invoke_agent a"),
        ("mesh-a", "execute_tool pay"),
        ("mesh-a", "execute_tool transfer_to_b b"),
        ("mesh-b", "invoke_agent b"),
        ("mesh-b", "execute_tool ship"),
        ("mesh-b", "send mesh.prop"),
    }
    ids = {span.id for span in spans}
    assert [span.name for span in spans if span.parent not in ids] == ["send mesh.prop"], "one root"
    assert CANARY.encode() not in exported
    lines = [line for line in services[0].lines() if line.get("request") == request and "n" in line]
    assert [line["event"] for line in lines] == [
        "request_opened",
        "handoff_admitted",
        "facts_withheld",  # what the end rests on: it is not for the client
        "request_completed",
    ]
    assert lines[2]["span_id"] == lines[3]["span_id"], "one verdict brought both about"
    assert {line["trace_id"] for line in lines} == {spans[0].trace}
    assert {line["span_id"] for line in lines} <= ids


async def test_what_a_service_counts_is_shown_to_prometheus(crew: Crew) -> None:
    guard, a, b = await crew.guard("g1"), await crew.agent("a"), await crew.agent("b")
    await crew.all_ready()
    client = await crew.client()
    outcome = await client.wait(await client.submit(CANARY), timeout_s=PATIENCE_S)
    assert outcome.status == "completed"
    await crew.drained()
    shown: dict[str, float] = {}
    for service in (guard, a, b):
        status, text = await page(service)
        assert status == 200
        assert CANARY not in text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                shown[sample.name] = shown.get(sample.name, 0) + sample.value
    assert shown["mesh_handoffs_total"] == 3
    assert shown["mesh_deliveries_dropped_total"] == 0, "a series from the start: the first is an increase"
    assert shown["mesh_requests_opened_total"] == shown["mesh_requests_ended_total"] == 1
    assert shown["mesh_build_info"] == 3, "of each process"
    assert shown["mesh_key_age_seconds"] >= 0
    assert shown["mesh_turn_duration_seconds_count"] == shown["mesh_queue_time_seconds_count"] == 2
    assert shown["mesh_guard_lag_seconds_count"] >= 3


async def test_one_guard_shows_the_mesh_and_another_takes_over(crew: Crew) -> None:
    guards = [await crew.guard("g1"), await crew.guard("g2")]
    await crew.agent("a")
    await crew.all_ready()

    showing: list[Service] = []

    async def one_shows() -> bool:
        """Two may show it for a while: the one that was elected, and the one that was before."""
        pages = [(guard, (await page(guard))[1]) for guard in guards]
        showing[:] = [guard for guard, text in pages if "mesh_requests{" in text]
        return len(showing) == 1

    await eventually(one_shows, PATIENCE_S)
    (first,) = showing
    first.signal(signal.SIGKILL)
    guards.remove(first)
    await eventually(one_shows, PATIENCE_S)
    _, text = await page(guards[0])
    series = {
        (sample.name, sample.labels.get("gen_ai_agent_name")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert series["mesh_agent_instances", "a"] == 1
    assert series["mesh_agent_instances", "b"] == 0


@pytest.mark.parametrize("kind", ["refusing", "silent"])
async def test_a_collector_that_is_away_costs_neither_a_request_nor_a_process(crew: Crew, kind: str) -> None:
    with Collector(silent=True) as silent, socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))  # and nobody listens
        port = refusing.getsockname()[1]
        url = silent.url if kind == "silent" else f"http://127.0.0.1:{port}"
        told = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        crew.environment |= {**told, "OTEL_METRIC_EXPORT_INTERVAL": "100", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
        services = [await crew.guard("g1"), await crew.agent("a"), await crew.agent("b")]
        await crew.all_ready()
        sent = await send(crew, "hello", **told)
        assert sent.returncode == 0, sent.stderr
        await services[0].says("telemetry_not_exported")
        await crew.drained()
        for service in services:
            service.signal(signal.SIGTERM)
        assert [await service.ended() for service in services] == [0, 0, 0]
        complaints = [line["signal"] for line in services[0].said("telemetry_not_exported")]
        assert len(complaints) == len(set(complaints)), "each signal's outage is said once"


async def test_a_command_says_what_is_missing(crew: Crew, tmp_path: Path) -> None:
    sent = await send(
        crew, "hello", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", OTEL_EXPORTER_OTLP_PROTOCOL="grpc"
    )
    assert sent.returncode == 2
    assert "http/protobuf only" in sent.stderr
    assert "[telemetry.unavailable]" in sent.stderr
