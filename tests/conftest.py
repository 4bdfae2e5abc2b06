"""Fixtures that meet a real server: one for each test module, under the configuration that ships."""

import compileall
import contextlib
import gc
import os
import signal
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

from mesh.bus.connection import Bus
from mesh.testing import EmbeddedBus
from protocol.wire.config import Fleet
from tests.guard.stage import Stage, furnished_mesh, staged
from tests.leftovers import children
from tests.logs import log_state, plain_logs, put_back
from tests.servers import FLEET, PATIENCE_S, ROOT, ConnectAs
from tests.warm import warm_starts

# Property tests find what they find on a busy machine, too: none of them is about speed.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

MEMORY = Path("/dev/shm")
UNIT = ROOT / "tests" / "unit"
ROOM_BYTES = 8 << 30
"""A run of everything writes 1.8 GB, and a server promises its streams three quarters of what is free."""


def pytest_configure(config: pytest.Config) -> None:
    """Let every module be compiled once: each worker and hundreds of processes would compile it again.

    Some environments forbid bytecode (`PYTHONDONTWRITEBYTECODE`); a run then takes far more processor time.
    Others let nothing be buffered (`PYTHONUNBUFFERED`), which hides that a print comes late.
    Garbage is not looked for while tests are collected: there is none, and it takes a third of that time.

    A script's background jobs ignore Ctrl-C (SIGINT), what `nohup` starts ignores SIGHUP, and so would all
    processes that such a run starts.

    What tests write lies in memory if there is room: servers make hundreds of small files each, and a busy
    disk keeps a test waiting for minutes. `TMPDIR` chooses another place. What programs leave among
    temporary files (uv its locks, a reference fleet its records) is put away with the run.
    """
    gc.disable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        os.environ.pop(name, None)
    sys.dont_write_bytecode = False
    warm = contextlib.ExitStack()
    if not hasattr(config, "workerinput"):
        for room in ("mesh", "protocol"):
            compileall.compile_dir(ROOT / room, quiet=2)
        is_free = "TMPDIR" not in os.environ and _usable(MEMORY)
        place = str(MEMORY) if is_free else tempfile.gettempdir()
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", place)  # what failed tests wrote outlives the run
        own = warm.enter_context(tempfile.TemporaryDirectory(prefix="mesh-", dir=place))
        Path(own).chmod(0o711)  # a test's other user reaches what it made there for it
        os.environ["TMPDIR"] = tempfile.tempdir = own
        os.environ["XDG_CACHE_HOME"] = f"{own}/cache"  # a command keeps its index of requests there
    warm.enter_context(warm_starts())  # of the workers, too
    config.add_cleanup(warm.close)


def _usable(folder: Path) -> bool:
    """Return True if a folder has room for a run, and programs in it can be started."""
    if not folder.is_dir():
        return False
    system = os.statvfs(folder)
    return system.f_bavail * system.f_frsize > ROOM_BYTES and not system.f_flag & os.ST_NOEXEC


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put a file of `tests/unit` behind each two others: one computes, the others wait most of the time.

    The folders' own order lets the processors rest in the middle of a run, and puts all computing at its end.
    What computes most, the protocol, comes first: it fills the longest waits, those of drills and turns.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    order = [path for path in files if UNIT not in path.parents]
    computing = [path for path in files if UNIT in path.parents]
    computing.sort(key=lambda path: UNIT / "protocol" not in path.parents)
    for number, path in enumerate(computing):
        order.insert(3 * number + 2, path)  # behind the last one at the latest
    items[:] = [item for path in order for item in files[path]]


def pytest_collection_finish() -> None:
    """Look for garbage again, but among what the tests make, not in all that was imported and collected."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_the_tests() -> Iterator[None]:
    """Fail the run whose tests have left a process behind; here, when everything else is put away."""
    before = set(children())
    yield
    patience = time.monotonic() + PATIENCE_S  # for what was killed and is not gone yet
    while (left := set(children()) - before) and time.monotonic() < patience:
        time.sleep(0.05)
    assert not left


@pytest.fixture(scope="session", autouse=True)
def logs() -> Iterator[None]:
    with plain_logs():
        yield


@pytest.fixture(autouse=True)
def nothing_is_logged_otherwise_afterwards() -> Iterator[None]:
    """Fail the test that leaves logging changed, and put it back: the next one captures what it waits for."""
    before = log_state()
    yield
    after = log_state()
    put_back(before)
    changed = [name for name, was, now in zip(before._fields, before, after, strict=True) if was != now]
    assert not changed, f"the test left logging changed: {', '.join(changed)}"


@pytest.fixture(scope="session", autouse=True)
def no_authority_is_trusted() -> Iterator[None]:
    """Leave the internet's certificates unread: each HTTP client reads all of them, and no test needs one."""
    paths = ssl.get_default_verify_paths()
    everybodys = {certifi.where(), paths.cafile, paths.openssl_cafile} - {None}
    read = ssl.SSLContext.load_verify_locations

    def read_others(
        context: ssl.SSLContext, cafile: Any = None, capath: Any = None, cadata: Any = None
    ) -> None:
        if cafile not in everybodys:
            read(context, cafile, capath, cadata)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ssl.SSLContext, "load_verify_locations", read_others)
        yield


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    return FLEET


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBus]:
    """A fresh server with `FLEET` provisioned, shared by one module's tests: use ids of your own."""
    async with EmbeddedBus(FLEET, tmp_path_factory.mktemp("mesh"), anonymous="c2") as mesh:
        yield mesh
        await mesh.server.kill()  # a clean end takes half a second, and nobody looks at this store again


@pytest_asyncio.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[EmbeddedBus]:
    """A server for one test alone: to be killed, filled or provisioned anew."""
    async with EmbeddedBus(FLEET, tmp_path) as mesh:
        yield mesh
        await mesh.server.kill()


@pytest_asyncio.fixture
async def connect_as(server: EmbeddedBus) -> AsyncIterator[ConnectAs]:
    """Connect to the module's server by name; every connection is closed after the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def connect(name: str) -> Bus:
            return await stack.enter_async_context(server.connected_as(name))

        yield connect


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def furnished(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBus]:
    """A server with streams, the stage's fleet and its policies, shared by one module's tests."""
    async with furnished_mesh(tmp_path_factory.mktemp("mesh")) as mesh:
        yield mesh


@pytest_asyncio.fixture
async def stage(furnished: EmbeddedBus) -> AsyncIterator[Stage]:
    """A stage with one guard; every log that the test leaves behind is judged again when it ends."""
    async with staged(furnished, guards=1) as own:
        yield own
