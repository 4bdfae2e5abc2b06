"""Fixtures: the page, served to a browser or to a client in this process, over a stage's mesh."""

import contextlib
import logging
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx
import pytest
import pytest_asyncio

from mesh.testing import EmbeddedBus
from mesh.ui import Keys, Options, keys_in, serving
from tests.guard.stage import Stage, seed_directory, staged
from tests.logs import plain_logs
from tests.servers import PATIENCE_S
from tests.system.office import Office
from tests.ui.shop import Shop, open_shop

if TYPE_CHECKING:
    from playwright.async_api import Browser

Serve = Callable[..., AbstractAsyncContextManager[str]]


@pytest_asyncio.fixture
async def stage(furnished: EmbeddedBus) -> AsyncIterator[Stage]:
    """A stage with one guard; every log that the test leaves behind is judged again when it ends."""
    with plain_logs(logging.CRITICAL):
        async with staged(furnished, guards=1) as own:
            yield own


@pytest.fixture
def office(stage: Stage, tmp_path: Path) -> Office:
    """Requests that wait for people, and an operator's terminal."""
    return Office(stage, tmp_path)


@pytest.fixture
def keys(furnished: EmbeddedBus) -> Keys:
    return keys_in(furnished.url, seed_directory(furnished), reader="op", operator="op")


@pytest.fixture
def serve(stage: Stage, keys: Keys, tmp_path: Path) -> Serve:
    """Serve the page: `async with serve(allow_write=True) as address:`."""

    @contextlib.asynccontextmanager
    async def serve(**options: Any) -> AsyncIterator[str]:
        async with serving(keys, Options(**{"store": tmp_path / "page", **options})) as address:
            yield address

    return serve


@pytest.fixture
def page_port() -> Iterator[int]:
    """A port that stays the page's, which ends and is served on it again: nobody else gets it meanwhile."""
    with socket.socket() as held:
        # With this a page may bind it, too, since nobody listens here.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


# --- a shop before a browser, one for a module ----------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator["Browser"]:
    from tests.ui.browser import chromium

    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    """A mesh with every kind of request, for all tests of the module: each changes only its own."""
    with plain_logs(logging.CRITICAL):
        async with open_shop(tmp_path_factory.mktemp("mesh")) as shop:
            yield shop


@pytest.fixture(scope="module")
def shop_keys(shop: Shop) -> Keys:
    return keys_in(shop.stage.mesh.url, seed_directory(shop.stage.mesh), reader="ops", operator="ops")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop_page(
    shop: Shop, shop_keys: Keys, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    """The address of its page, on which Ada acts."""
    options = Options(allow_write=True, by="Ada", store=tmp_path_factory.mktemp("page"))
    async with serving(shop_keys, options) as address:
        yield address


# --- a client in this process ---------------------------------------------------------------------


class Visitor:
    """Somebody at a browser: they see a page, fill its form and send it."""

    def __init__(self, address: str) -> None:
        self.browser = httpx.AsyncClient(base_url=address, timeout=PATIENCE_S)

    async def __aenter__(self) -> Self:
        await self.browser.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.browser.__aexit__(*error)

    async def form(self, page: str) -> dict[str, str]:
        """Return what the forms of a page hold already."""
        shown = await self.browser.get(page)
        assert shown.status_code == 200, shown.text
        return {
            found["name"]: found["value"]
            for found in re.finditer(
                r'type="hidden" name="(?P<name>[^"]+)" value="(?P<value>[^"]*)"', shown.text
            )
        }

    async def posts(self, path: str, form: dict[str, str], **headers: str) -> httpx.Response:
        return await self.browser.post(path, data=form, headers=headers)

    async def sends(self, page: str, path: str, said: dict[str, str]) -> httpx.Response:
        """Send a form of a page with what somebody says in it."""
        return await self.posts(path, await self.form(page) | said)
