"""A real browser before the page: the one in CHROMIUM, driven by Playwright, and what axe-core finds."""

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

from tests.servers import PATIENCE_S

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
AXE = Path(str(files("axe_playwright_python"))) / "axe.min.js"
PICTURES_FOLDER = os.environ.get("MESH_DOCS_PICTURES")
"""Set it to the folder into which the pictures of the docs are written: docs/pictures."""


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Give the browser. A machine without it fails, and learns what to install."""
    _require_chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--force-prefers-reduced-motion"]
        )
        async with contextlib.aclosing(_Closing(browser)):
            yield browser


def _require_chromium() -> None:
    assert Path(CHROMIUM).exists(), f"{CHROMIUM} is missing: make test finds or installs one; or set CHROMIUM"


class _Closing:
    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    async def aclose(self) -> None:
        await self._browser.close()


class Tab:
    """The browser's one tab, as new, which fails its test for whatever the page says is wrong.

    A tab of each test's own would be a process of each test's own, which compiles all of axe-core anew.

    Args:
        address: of the page that is served.
    """

    def __init__(self, browser: Browser, address: str, *, width: int = 1280, scheme: Any = "light") -> None:
        self._browser, self.address = browser, address
        self._width, self._scheme = width, scheme
        self.wrong: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Parts of what the console may say: the browser tells of each answer that is an error."""
        self._listens: dict[Any, Callable[[Any], None]] = {
            "pageerror": lambda error: self.wrong.append(f"error: {error}"),
            "console": self._hear,
            "dialog": lambda dialog: self.wrong.append(f"dialog: {dialog.message}"),
        }

    async def __aenter__(self) -> Self:
        if self._browser.contexts:
            (self._context,) = self._browser.contexts
            (self.page,) = self._context.pages
        else:
            self._context = await self._browser.new_context()
            self.page = await self._context.new_page()
            self.page.set_default_timeout(PATIENCE_S * 1000)
        await self.page.set_viewport_size({"width": self._width, "height": 900})
        await self.page.emulate_media(color_scheme=self._scheme, reduced_motion="reduce")
        for what, heard in self._listens.items():
            self.page.on(what, heard)
        return self

    async def __aexit__(self, *error: object) -> None:
        if error[0] is not None:
            await self._context.close()
            return
        await self.leave()
        await self._context.clear_cookies()
        for what, heard in self._listens.items():
            self.page.remove_listener(what, heard)
        left = [said for said in self.wrong if not any(part in said for part in self.expected)]
        assert not left, left

    def _hear(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self.wrong.append(said.text)

    async def open(self, path: str) -> Page:
        """Go to a view and return it once it is shown."""
        await self.page.goto(self.address + path, wait_until="load")
        return self.page

    async def leave(self) -> None:
        """Leave what is shown: what the browser still loads for it, as its icon, ends with it."""
        if self.page.url != "about:blank":
            await self.page.evaluate("localStorage.clear(); sessionStorage.clear()")
            await self.page.goto("about:blank")

    async def check_accessible(self) -> None:
        """Assert that axe-core finds nothing serious in what is shown."""
        if await self.page.evaluate("!window.axe"):
            await self.page.evaluate(AXE.read_text())
        found = await self.page.evaluate("axe.run({resultTypes: ['violations']})")
        serious = [
            f"{each['id']}: {each['help']}: {[node['target'] for node in each['nodes']][:3]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        assert not serious, serious

    async def check_fits(self) -> None:
        """Assert that nothing makes the whole page scroll sideways."""
        wide = await self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{wide} px too wide"

    async def picture(self, name: str, *, whole: bool = False) -> None:
        """Write a picture for the docs, if the run was asked to."""
        if PICTURES_FOLDER:
            await self.page.screenshot(path=f"{PICTURES_FOLDER}/{name}.png", full_page=whole)
