"""Fixtures: the stage of the guard's tests, on servers whose leases end soon."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from mesh.agent import runtime
from mesh.bus import streams
from mesh.testing import LocalMesh
from tests.guard.stage import FLEET, Stage, furnish, plain_logs

LEASE_S = 0.9


@pytest.fixture(scope="module", autouse=True)
def logs() -> Iterator[None]:
    with plain_logs():
        yield


@pytest.fixture(scope="module", autouse=True)
def short_leases() -> Iterator[None]:
    """Lease and heartbeat in their usual proportion, and both much shorter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "INBOX_ACK_WAIT_S", LEASE_S)
        patch.setattr(runtime, "INBOX_PULL_S", LEASE_S * 2 / 3)
        patch.setattr(runtime, "HEARTBEAT_S", LEASE_S / 3)
        patch.setattr(runtime, "LATER_S", 0.05)
        yield


@pytest_asyncio.fixture
async def stage(short_leases: None, tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage with a guard, on a server of its own: what one test leaves in an inbox is no other's."""
    async with LocalMesh(FLEET, tmp_path / "mesh") as mesh:
        await furnish(mesh)
        own = Stage(mesh)
        await own.open()
        await own.ready(await own.guard())
        yield own
        await own.close()
        await mesh.server.kill()
