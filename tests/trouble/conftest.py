"""Fixtures: services at the end of wires."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from mesh.testing import LocalBus
from tests.trouble.crew import FLEET, furnish
from tests.trouble.wired import Wired


@pytest_asyncio.fixture
async def wired(tmp_path: Path) -> AsyncIterator[Wired]:
    async with LocalBus(FLEET, tmp_path) as mesh:
        await furnish(mesh)
        own = Wired(mesh)
        yield own
        await own.close()
        await mesh.server.kill()
