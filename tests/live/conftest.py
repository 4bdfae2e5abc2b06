"""Fixtures: the stage of the guard's tests, with a guard on it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.guard.stage import Stage, furnished_mesh, staged


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with furnished_mesh(tmp_path / "mesh") as mesh, staged(mesh, guards=1) as own:
        yield own
