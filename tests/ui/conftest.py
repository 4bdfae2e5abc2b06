"""Fixtures: the page, served to a browser or to a client in this process, over a stage's mesh."""

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mesh.testing import LocalBus
from mesh.ui import Keys, Options, keys_in, serving
from tests.guard.stage import Stage, seed_directory, staged
from tests.logs import plain_logs
from tests.system.office import Office

Serve = Callable[..., AbstractAsyncContextManager[str]]


@pytest_asyncio.fixture
async def stage(furnished: LocalBus) -> AsyncIterator[Stage]:
    """A stage with one guard; every log that the test leaves behind is judged again when it ends."""
    with plain_logs(logging.CRITICAL):
        async with staged(furnished, guards=1) as own:
            yield own


@pytest.fixture
def office(stage: Stage, tmp_path: Path) -> Office:
    """Requests that wait for people, and an operator's terminal."""
    return Office(stage, tmp_path)


@pytest.fixture
def keys(furnished: LocalBus) -> Keys:
    return keys_in(furnished.url, seed_directory(furnished), reader="op", operator="op")


@pytest.fixture
def serve(stage: Stage, keys: Keys, tmp_path: Path) -> Serve:
    """Serve the page: `async with serve(allow_write=True) as address:`."""

    @contextlib.asynccontextmanager
    async def serve(**options: Any) -> AsyncIterator[str]:
        async with serving(keys, Options(**{"store": tmp_path / "page", **options})) as address:
            yield address

    return serve
