"""Fixtures: the stage of the guard's tests, on servers whose leases end soon."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from mesh.agent import _runtime
from mesh.testing import LocalBus
from tests.guard.stage import FLEET, Stage, furnish

LEASE_S = 1.5


@pytest.fixture(scope="module", autouse=True)
def short_leases() -> Iterator[None]:
    """Lease and heartbeat in their usual proportion, and both much shorter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_runtime, "LATER_S", 0.05)
        yield


@pytest_asyncio.fixture
async def stage(short_leases: None, tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage with a guard, on a server of its own: what one test leaves in an inbox is no other's."""
    async with LocalBus(msgspec.structs.replace(FLEET, lease_s=LEASE_S), tmp_path / "mesh") as mesh:
        await furnish(mesh)
        own = Stage(mesh)
        await own.open()
        await own.ready(await own.guard())
        yield own
        await own.close()
        await mesh.server.kill()
