"""Fixtures: the stage of the guard's tests, with a guard on it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from mesh.testing import LocalMesh
from tests.guard.stage import FLEET, Stage, furnish, plain_logs


@pytest.fixture(scope="module", autouse=True)
def logs() -> Iterator[None]:
    with plain_logs():
        yield


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with LocalMesh(FLEET, tmp_path / "mesh") as mesh:
        await furnish(mesh)
        own = Stage(mesh)
        await own.open()
        await own.ready(await own.guard())
        yield own
        await own.close()
        await mesh.server.kill()
