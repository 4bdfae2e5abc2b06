"""Fixtures: a furnished server for each module, a stage for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mesh.guard.context import Waits
from mesh.testing import EmbeddedBus
from tests.guard.stage import FLEET, PATIENT, Stage, furnished_mesh, staged


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def furnished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EmbeddedBus]:
    """A server for one module's tests, with the fleet that it calls `FURNISHED`, or the stage's."""
    fleet = getattr(request.module, "FURNISHED", FLEET)
    async with furnished_mesh(tmp_path_factory.mktemp("mesh"), fleet) as mesh:
        yield mesh


@pytest_asyncio.fixture
async def stage(request: pytest.FixtureRequest, furnished: EmbeddedBus) -> AsyncIterator[Stage]:
    """An empty stage, whose guards wait as the module's `WAITS` say; its logs are judged again at its end."""
    async with staged(furnished, waits=_waits_of(request)) as own:
        yield own


@pytest_asyncio.fixture
async def own_stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage on a server of its own, which may be killed."""
    async with furnished_mesh(tmp_path) as mesh, staged(mesh, waits=_waits_of(request)) as own:
        yield own


def _waits_of(request: pytest.FixtureRequest) -> Waits:
    waits: Waits = getattr(request.module, "WAITS", PATIENT)
    return waits
