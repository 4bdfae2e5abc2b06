"""Fixtures: one live guard, one live agent, and everybody who can send them something."""

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from mesh.agent import _runtime as runtime_module
from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.guard.context import Waits
from mesh.testing import EmbeddedBus
from protocol.wire.moves import Move
from tests.bad_input.scene import FLEET, Scene
from tests.guard.stage import furnish
from tests.logs import plain_logs


@pytest.fixture(scope="module", autouse=True)
def logs() -> Iterator[None]:
    with plain_logs(logging.ERROR):
        yield


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be given time to become readable is given none."""
    monkeypatch.setattr(runtime_module, "UNKNOWN_S", 0.0)


async def answers(turn: Turn) -> Move:
    return turn.complete("done")


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with EmbeddedBus(FLEET, tmp_path / "mesh") as mesh:
        await furnish(mesh)
        own = Scene(mesh, Waits(again_s=0.1, overtaken_s=0.0))
        await own.open()
        own.guarded = await own.guard()
        await own.ready(own.guarded)
        own.served = await own.runtime(Agent("a", answers, concurrency=32))
        yield own
        await own.close()
        await mesh.server.kill()
