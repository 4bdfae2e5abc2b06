"""How fast a model is asked: by the fleet's limit of a process, and by a busy vendor's refusals."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh.model import ROUTING
from mesh.model import choice as driven
from mesh.testing import EmbeddedBus
from protocol.wire import events
from protocol.wire.config import BreakerRules, Fleet, ModelLimits
from tests.guard.stage import FLEET, Stage, furnish
from tests.live import prompted
from tests.scripted_claude import ask_at
from tests.servers import PATIENCE_S, until
from tests.vendors.claude import StubClaude
from tests.vendors.stand_in import Answer, Script, fails, says

SOON = {"retry-after-ms": "20"}
REFUSALS = 4
"""Of each request: more than any policy retries."""


@asynccontextmanager
async def furnished(
    directory: Path, fleet: Fleet, answer: Script, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stage]:
    """Yield a stage of its own, where the agent `a` asks a stand-in; the audit ends it."""
    async with EmbeddedBus(fleet, directory / "mesh") as mesh, StubClaude(answer) as stub:
        ask_at(stub.url, monkeypatch)
        await furnish(mesh)
        stage = Stage(mesh)
        await stage.open()
        await stage.ready(await stage.guard())
        await stage.runtime(prompted.agent)
        yield stage
        await stage.close()
        await driven.close_models()
        await mesh.server.kill()


async def test_a_process_asks_no_faster_than_the_fleet_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, most, go_on = 0, 0, asyncio.Event()

    async def answer(body: object) -> Answer:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await go_on.wait()
        under_way -= 1
        return says("ok")

    fleet = msgspec.structs.replace(FLEET, models={ROUTING: ModelLimits(concurrency=2)})
    async with furnished(tmp_path, fleet, answer, monkeypatch) as stage:
        client = await stage.client()
        shown: list[bytes] = []
        await (await stage.bus("c1", "listening")).subscribe(
            "mesh.live.c1.>", lambda message: shown.append(message.data)
        )
        requests = [await client.submit("Where?") for _ in range(8)]
        await until(lambda: sum(b'"called"' in data for data in shown) >= len(requests))
        await until(lambda: under_way >= 2)
        for _ in range(20):  # whatever else was on its way to the vendor arrives
            await client._bus.flush()
        go_on.set()
        outcomes = await asyncio.gather(*(client.wait(request, timeout_s=PATIENCE_S) for request in requests))
    assert {outcome.answer for outcome in outcomes} == {"ok"}
    assert most == 2


async def test_a_vendor_that_is_too_busy_costs_no_retry_no_breaker_and_no_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def answer(body: Mapping[str, Any]) -> Answer:
        nonlocal asked
        asked += 1
        return (
            says("ok") if asked % (REFUSALS + 1) == 0 else Answer(status=(429, 529)[asked % 2], headers=SOON)
        )

    monkeypatch.setattr("mesh.agent._rate_limit.FIRST_PAUSE_S", 0.02)
    fleet = msgspec.structs.replace(FLEET, breaker=BreakerRules(failures=1))
    async with furnished(tmp_path, fleet, answer, monkeypatch) as stage:
        client = await stage.client()
        requests = [await client.submit("Where?", policy="strict") for _ in range(5)]
        outcomes = [await client.wait(request, timeout_s=PATIENCE_S) for request in requests]
        assert {outcome.answer for outcome in outcomes} == {"ok"}
        for request in requests:
            assert await stage.types(request) == ["request.opened", "request.completed"]
    assert asked >= len(requests) * (REFUSALS + 1)


async def test_a_turn_whose_time_is_used_up_by_waiting_fails_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with furnished(tmp_path, FLEET, [fails(429, retry_after_s=3600)], monkeypatch) as stage:
        request = await (await stage.client()).submit("Where?", policy="leisurely")
        failed = await stage.reached(request, events.TurnFailed)
        await (await stage.client()).cancel(request)
        await stage.reaches(request, "request.cancelled")
    assert failed.error.code == "model.throttled"
    assert failed.error.retry_after_s == pytest.approx(3600, abs=10)
    assert "status 429" in failed.error.message
    assert "the round may take 4 s, and" in failed.error.message
