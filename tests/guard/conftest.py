"""Fixtures: a furnished server for each module, a stage for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mesh.guard import availability
from mesh.testing import EmbeddedBus
from tests.guard.stage import FLEET, Stage, furnished_mesh, staged
from tests.servers import PATIENCE_S


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a guard wait for the bus: it gives up a look, and the count of a failure, after a second."""
    monkeypatch.setattr(availability, "_ANSWER_S", PATIENCE_S)
    monkeypatch.setattr(availability, "WAIT_S", PATIENCE_S)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def furnished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EmbeddedBus]:
    """A server for one module's tests, with the fleet that it calls `FURNISHED`, or the stage's."""
    fleet = getattr(request.module, "FURNISHED", FLEET)
    async with furnished_mesh(tmp_path_factory.mktemp("mesh"), fleet) as mesh:
        yield mesh


@pytest_asyncio.fixture
async def stage(furnished: EmbeddedBus) -> AsyncIterator[Stage]:
    """An empty stage; every log that the test leaves behind is judged again when it ends."""
    async with staged(furnished) as own:
        yield own


@pytest_asyncio.fixture
async def own_stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage on a server of its own, which may be killed."""
    async with furnished_mesh(tmp_path) as mesh, staged(mesh) as own:
        yield own
