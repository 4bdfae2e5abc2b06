"""Five meshes: as shipped, with keys and with claims, and without one protection each."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from mesh.bus.connection import Bus
from mesh.testing import EmbeddedBus
from tests.security.attacks import Tried, tried
from tests.security.scenes import LooseMesh, Scene
from tests.servers import FLEET
from tests.signed import SignedMesh
from tests.ui.conftest import keys, office, serve, stage  # noqa: F401 - fixtures


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _signed(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Callable[[], Awaitable[EmbeddedBus]]]:
    """Return what gives a mesh whose server is in operator mode. It is started for the first who asks."""
    started = list[EmbeddedBus]()
    async with contextlib.AsyncExitStack() as stack:

        async def give() -> EmbeddedBus:
            if not started:
                mesh = SignedMesh(FLEET, tmp_path_factory.mktemp("signed"))
                started.append(await stack.enter_async_context(mesh))
            return started[0]

        yield give


@pytest_asyncio.fixture
async def shipped(
    server: EmbeddedBus, _signed: Callable[[], Awaitable[EmbeddedBus]], request: pytest.FixtureRequest
) -> AsyncIterator[Scene]:
    """The mesh as it ships; `attacks.BOTH_WAYS` tries a test with `[bus] auth = "jwt"`, too."""
    mesh = await _signed() if getattr(request, "param", "nkeys") == "jwt" else server
    async with Scene(mesh, shipped=True) as scene:
        yield scene


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _without_walls(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBus]:
    async with LooseMesh(FLEET, tmp_path_factory.mktemp("walls"), permissions=True) as mesh:
        yield mesh


@pytest_asyncio.fixture
async def without_walls(_without_walls: EmbeddedBus) -> AsyncIterator[Scene]:
    """Everybody in one account, with the very permissions that ship."""
    async with Scene(_without_walls, shipped=False) as scene:
        yield scene


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _without_permissions(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBus]:
    async with LooseMesh(FLEET, tmp_path_factory.mktemp("permissions"), permissions=False) as mesh:
        yield mesh


@pytest_asyncio.fixture
async def without_permissions(_without_permissions: EmbeddedBus) -> AsyncIterator[Scene]:
    """Everybody in one account, and everybody may do everything."""
    async with Scene(_without_permissions, shipped=False) as scene:
        yield scene


async def loosen(admin: Bus, stream: str, **fields: object) -> None:
    """Change a stream's configuration behind provisioning's back."""
    config = (await admin.api(f"STREAM.INFO.{stream}"))["config"]
    await admin.api(f"STREAM.UPDATE.{stream}", {**config, **fields})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _loose_streams(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBus]:
    async with EmbeddedBus(FLEET, tmp_path_factory.mktemp("streams")) as mesh:
        async with mesh.connected_as("admin") as admin:
            for stream in ("DEAD", "CTL"):
                await loosen(admin, stream, duplicate_window=120 * 10**9)
            await admin.api("STREAM.DELETE.CARDS")
            card = {"name": "CARDS", "subjects": ["mesh.card.*"], "allow_direct": True, "storage": "file"}
            loose = {"allow_rollup_hdrs": True, "allow_msg_ttl": True, "allow_msg_schedules": True}
            await admin.api("STREAM.CREATE.CARDS", {**card, "max_msgs_per_subject": 1, **loose})
        yield mesh


@pytest_asyncio.fixture
async def loose_streams(_loose_streams: EmbeddedBus) -> AsyncIterator[Scene]:
    """The accounts that ship, over streams that take deduplication, rollups, TTLs and schedules."""
    async with Scene(_loose_streams, shipped=False) as scene:
        yield scene


@pytest.fixture
def refused(without_permissions: Scene, shipped: Scene) -> Tried:
    return tried(without_permissions, shipped)


@pytest.fixture
def walled_off(without_walls: Scene, shipped: Scene) -> Tried:
    return tried(without_walls, shipped)


@pytest.fixture
def kept_out(loose_streams: Scene, shipped: Scene) -> Tried:
    return tried(loose_streams, shipped)
