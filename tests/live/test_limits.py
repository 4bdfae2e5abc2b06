"""The fleet says how fast a model may be asked, and an agent's instances share that."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from mesh.bus.reader import get
from mesh.model import ROUTING
from mesh.model import agent as driven
from mesh.testing import LocalBus
from mesh.testing.claude_stub import Answer, StubClaude, says
from protocol.wire import config, subjects
from protocol.wire.config import ModelLimits
from tests.guard.stage import FLEET, Stage, furnish
from tests.live import prompted
from tests.scripted_claude import ask_at
from tests.servers import PATIENCE_S, until

LIMITS = ModelLimits(concurrency=2)


async def test_instances_ask_no_faster_than_the_fleet_says(
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

    fleet = msgspec.structs.replace(FLEET, models={ROUTING: LIMITS})
    async with LocalBus(fleet, tmp_path / "mesh") as mesh, StubClaude(answer) as stub:
        ask_at(stub.url, monkeypatch)
        await furnish(mesh)
        stage = Stage(mesh)
        await stage.open()
        await stage.ready(await stage.guard())
        await stage.runtime(prompted.agent)
        client = await stage.client()
        shown: list[bytes] = []
        await (await stage.bus("c1", "listening")).subscribe(
            "mesh.live.c1.>", lambda message: shown.append(message.data)
        )
        requests = [await client.submit("Where?") for _ in range(8)]
        await until(lambda: sum(b'"called"' in data for data in shown) == len(requests))
        await until(lambda: under_way >= 2)
        for _ in range(20):  # whatever else was on its way to the vendor arrives
            await client._bus.flush()
        go_on.set()
        outcomes = await asyncio.gather(*(client.wait(request, timeout_s=PATIENCE_S) for request in requests))
        await stage.close()
        async with mesh.connected_as("a") as bus:
            found = await get(bus, "RATES", subjects.rate(ROUTING))
        assert found is not None
        assert config.read_rate_limit(found.data).shares == {}  # an agent that leaves gives its share back
        await driven.close_models()
        await mesh.server.kill()
    assert {outcome.answer for outcome in outcomes} == {"ok"}
    assert most == 2
