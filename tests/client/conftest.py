"""Fixtures: the stage of the guard's tests, with a guard on it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.guard.stage import Stage, furnished_mesh, staged
from tests.logs import plain_logs


@pytest.fixture(scope="module", autouse=True)
def logs() -> Iterator[None]:
    with plain_logs():
        yield


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with furnished_mesh(tmp_path / "mesh") as mesh, staged(mesh, guards=1) as own:
        yield own
