"""One stage for each SDK: its mesh and its process last as long as the module."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.adapters.stage import Stage, staged


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stage]:
    script: str = request.module.SCRIPT
    async with staged(Path(__file__).with_name(script), tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest.fixture
def stage(played: Stage) -> Stage:
    """Give the module's stage, with a world in which nothing has happened."""
    played.forget()
    return played
