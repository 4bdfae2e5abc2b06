"""Fixtures: a stage with one guard, and requests that wait for people."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mesh.testing import EmbeddedBus
from tests.guard.stage import Stage, staged
from tests.system.office import Office


@pytest_asyncio.fixture
async def stage(furnished: EmbeddedBus) -> AsyncIterator[Stage]:
    async with staged(furnished, guards=1) as own:
        yield own


@pytest.fixture
def office(stage: Stage, tmp_path: Path) -> Office:
    return Office(stage, tmp_path)
