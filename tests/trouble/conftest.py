"""Fixtures: services at the end of wires."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mesh.testing import EmbeddedBus
from tests.trouble.crew import FLEET, furnish
from tests.trouble.wired import Wired


@pytest_asyncio.fixture
async def wired(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Wired]:
    """Make the parts of a mesh of `FLEET`, or of the fleet that a test gives as this fixture's parameter."""
    async with EmbeddedBus(getattr(request, "param", FLEET), tmp_path) as mesh:
        await furnish(mesh)
        own = Wired(mesh)
        yield own
        await own.close()
        await mesh.server.kill()
