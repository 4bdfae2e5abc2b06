"""Fixtures: the stage of the guard's tests, on servers whose leases end soon."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from mesh.agent import _runtime
from mesh.bus.connection import Bus
from mesh.bus.streams import CONTROLS, LOG, PROPOSALS, TIMERS, consumer_table
from mesh.testing import EmbeddedBus
from tests.guard.stage import FLEET, Stage, furnished_mesh, staged
from tests.servers import queues

LEASE_S = 1.5
SHORT = msgspec.structs.replace(FLEET, lease_s=LEASE_S)


@pytest.fixture(scope="module", autouse=True)
def short_leases() -> Iterator[None]:
    """Lease and heartbeat in their usual proportion, and both much shorter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_runtime, "LATER_S", 0.05)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def furnished(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBus]:
    async with furnished_mesh(tmp_path_factory.mktemp("mesh"), SHORT) as mesh:
        yield mesh


@pytest_asyncio.fixture
async def stage(furnished: EmbeddedBus) -> AsyncIterator[Stage]:
    """A stage with a guard, on its module's server: what earlier tests left waits for nobody any more."""
    async with furnished.connected_as("admin") as admin:
        await forget_work(admin)
    async with staged(furnished, guards=1) as own:
        yield own


@pytest_asyncio.fixture
async def own_stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """The same on a server of its own, which may be killed, and whose fleet may change."""
    async with furnished_mesh(tmp_path / "mesh", SHORT) as mesh, staged(mesh, guards=1) as own:
        yield own


async def forget_work(admin: Bus) -> None:
    """Empty the queues and timers, and begin every inbox anew at the log's end."""
    for kind in (PROPOSALS, CONTROLS, TIMERS):
        for queue in await queues(admin, kind):
            await admin.api(f"STREAM.PURGE.{queue}")
    for stream, name, config in consumer_table(SHORT):
        if stream == LOG:
            await admin.api(f"CONSUMER.DELETE.{LOG}.{name}")
            anew = {"stream_name": LOG, "config": {**config, "deliver_policy": "new"}, "action": "create"}
            await admin.api(f"CONSUMER.CREATE.{LOG}.{name}", anew)
