"""Fixtures: a furnished server for each module, a stage for each test."""

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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def furnished(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalMesh]:
    """A server with streams, fleet and policies, shared by one module's tests."""
    async with LocalMesh(FLEET, tmp_path_factory.mktemp("mesh")) as mesh:
        await furnish(mesh)
        yield mesh
        await mesh.server.kill()


@pytest_asyncio.fixture
async def stage(furnished: LocalMesh) -> AsyncIterator[Stage]:
    """An empty stage; every log that the test leaves behind is judged again when it ends."""
    own = Stage(furnished)
    await own.open()
    yield own
    await own.close()


@pytest_asyncio.fixture
async def own_stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage on a server of its own, which may be killed."""
    async with LocalMesh(FLEET, tmp_path) as mesh:
        await furnish(mesh)
        own = Stage(mesh)
        await own.open()
        yield own
        await own.close()
        await mesh.server.kill()
