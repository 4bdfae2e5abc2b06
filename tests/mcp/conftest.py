"""Fixtures: the folder in which `tests.mcp_server` leaves its traces, and that server, mounted."""

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mesh.mcp import McpServer
from tests.servers import PATIENCE_S, ROOT
from tests.warm import read_early

Mount = Callable[..., McpServer]


class World:
    """What the server did to the world, and the gate that it waits at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def done(self) -> list[str]:
        file = self.folder / "done"
        return file.read_text().splitlines() if file.exists() else []

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    @property
    def environment(self) -> dict[str, str]:
        """What the server has to be given so that it is started warm."""
        return read_early(os.environ)

    @property
    def command(self) -> list[str | Path]:
        return [sys.executable, "-m", "tests.mcp_server", self.folder]


Things = tuple[McpServer, World]


class HttpServer:
    """The server as a process of its own, by HTTP."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._port = world.folder / "port"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Start it on a free port, and return its URL."""
        self._port.unlink(missing_ok=True)
        self._process = subprocess.Popen([*self._world.command, "--http"], cwd=ROOT)
        give_up_at = time.monotonic() + PATIENCE_S
        while not self._port.exists():  # another process writes it
            assert self._process.poll() is None, "the server ended as it started"
            assert time.monotonic() < give_up_at, f"the server was not ready within {PATIENCE_S:g} s"
            time.sleep(0.01)
        return f"http://127.0.0.1:{self._port.read_text()}/mcp"

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def by_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that the tests of a module share."""
    server = HttpServer(World(tmp_path_factory.mktemp("world")))
    yield server.start()
    server.kill()


@pytest.fixture
def own_http(world: World) -> Iterator[HttpServer]:
    """A server for one test alone, which it starts and kills as it likes."""
    server = HttpServer(world)
    yield server
    server.kill()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest_asyncio.fixture
async def mount(world: World) -> AsyncIterator[Mount]:
    """Mount a server, over its standard streams unless told otherwise; it is closed after the test."""
    mounted: list[McpServer] = []

    def make(env: Mapping[str, str] | None = None, **how: Any) -> McpServer:
        if "url" not in how:
            how = {"command": world.command, "cwd": ROOT, "env": world.environment | dict(env or {})} | how
        mounted.append(McpServer("things", **{"start_s": PATIENCE_S} | how))
        return mounted[-1]

    yield make
    for server in mounted:
        await server.close()


sharing = pytest.mark.asyncio(loop_scope="module")
"""For tests that call `things`, which lives in the module's event loop."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def things(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Things]:
    """A server that a module's tests share, for those that leave its process as it was; and its world."""
    world = World(tmp_path_factory.mktemp("world"))
    server = McpServer(
        "things",
        command=world.command,
        cwd=ROOT,
        env=world.environment,
        start_s=PATIENCE_S,
        max_bytes=1000,
        effects={"pay": "idempotent"},
        timeouts={"hang": 0.2, "write_and_hang": 0.2},
    )
    yield server, world
    await server.close()
