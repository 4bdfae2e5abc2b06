"""Fixtures: guards and scripted agents on a real server, and an operator's terminal beside them."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mesh.testing import EmbeddedBus
from tests.guard.stage import Stage, furnished_mesh, staged
from tests.logs import plain_logs
from tests.system.office import Office


@pytest_asyncio.fixture
async def stage(furnished: EmbeddedBus) -> AsyncIterator[Stage]:
    """A stage with one guard; every log that the test leaves behind is judged again when it ends."""
    with plain_logs(logging.CRITICAL):  # what this process logs would mix with what commands print
        async with staged(furnished, guards=1) as own:
            yield own


@pytest_asyncio.fixture
async def own_stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """The same on a server of its own, which may be killed."""
    with plain_logs(logging.CRITICAL):
        async with furnished_mesh(tmp_path / "mesh") as mesh, staged(mesh, guards=1) as own:
            yield own


@pytest.fixture
def office(stage: Stage, tmp_path: Path) -> Office:
    """An operator's terminal, with everybody's keys."""
    return Office(stage, tmp_path)


@pytest.fixture
def own_office(own_stage: Stage, tmp_path: Path) -> Office:
    """The same beside a server of its own."""
    return Office(own_stage, tmp_path)
