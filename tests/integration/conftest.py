"""A server without accounts, and a queue on it."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mesh.bus.connection import connect
from mesh.local.server import EmbeddedServer
from tests.integration.pulling import Queue


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bare(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer("", tmp_path_factory.mktemp("bare"), sync_always=False) as server:
        yield server


@pytest_asyncio.fixture
async def queue(bare: EmbeddedServer) -> AsyncIterator[Queue]:
    async with await connect(bare.url, name="a") as bus:
        made = Queue(bus, bare)
        await made.create()
        yield made
