"""Pages that `mesh replay --html` writes, in a real browser: they fit, can be read, and load nothing."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from mesh.replay.code import Replayed
from mesh.replay.differences import CodeDifference
from mesh.replay.processes import RoundTally
from mesh.ui.replayed import code_as_html
from tests.servers import PATIENCE_S
from tests.system.terminal import Folder
from tests.ui.browser import Tab
from tests.unit.cli.conftest import STORY, spoilt

pytestmark = pytest.mark.asyncio(loop_scope="module")
expect.set_options(timeout=PATIENCE_S * 1000)

REQUEST = "shop_01JAZ3N5K7M9P1R3T5V7X9Z1BX"
PROMPT = "--- recorded\n+++ now\n@@ -1 +1 @@\n-Be kind.\n+Be brief."
DIFFERENCES = (
    CodeDifference(
        "move",
        "to billing → refunds",
        {"type": "transfer", "to_agent": "billing", "summary": "refund <b>order</b> 1042"},
        {"type": "transfer", "to_agent": "refunds", "summary": "refund <b>order</b> 1042"},
        verdict="the guard would admit it",
    ),
    CodeDifference("arguments", "call find: order", {"order": "O-1"}, {"order": "O" * 300}),
    CodeDifference("prompt", "instructions", "d1", "d2", diff=PROMPT),
    CodeDifference("raises", "shop/front.py:7: KeyError", {"type": "complete"}),
)


async def looks_right(tab: Tab, name: str) -> None:
    """Assert that a page fits and can be read, wide and narrow, light and dark."""
    page = await tab.open(name)
    for width, scheme in ((1280, "light"), (400, "dark")):
        await page.set_viewport_size({"width": width, "height": 900})
        await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        await expect(page.locator("h1")).to_be_visible()
        await tab.check_fits()
        await tab.check_accessible()


async def test_the_first_difference_of_each_request_stands_side_by_side(
    browser: Browser, tmp_path: Path
) -> None:
    tally = RoundTally()
    for n, difference in enumerate(DIFFERENCES):
        request = REQUEST if n < 2 else f"{REQUEST[:-1]}{n}"
        tally.add(Replayed(request, "front", "t", n, n, "1", "different", difference))
    (tmp_path / "code.html").write_text(code_as_html(tally))
    async with Tab(browser, f"file://{tmp_path}") as tab:
        await looks_right(tab, "/code.html")
        page = tab.page
        sections = page.locator("section:has(> h2.id)")
        await expect(sections).to_have_count(3)
        first = sections.first
        await expect(first.locator("tr.differs del").first).to_have_text('"to_agent": "billing",')
        await expect(first.locator("tr.differs ins").first).to_have_text('"to_agent": "refunds",')
        await expect(first).to_contain_text("the guard would admit it")
        later = first.get_by_text("call find: order")
        await expect(later).to_be_hidden()
        await first.get_by_text("1 later round that differs").focus()
        await page.keyboard.press("Enter")  # without a script
        await expect(later).to_be_visible()
        await tab.check_fits()
        await expect(sections.nth(1).locator("ins")).to_have_text("Be brief.")


@pytest.mark.parametrize("kind", ["rules", "judged"])
async def test_other_rules_and_a_spoilt_log_have_pages_of_their_own(
    browser: Browser, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "tight.toml").write_text("max_depth = 1\n")
    asked = (
        (STORY, "--policy", "tight.toml", "--policy", "tight.toml")
        if kind == "rules"
        else (spoilt(tmp_path / "log.jsonl"),)
    )
    done = await asyncio.to_thread(Folder(tmp_path).mesh, "replay", *asked, "--html", f"{kind}.html")
    assert done.status == 1, done
    async with Tab(browser, f"file://{tmp_path}") as tab:
        await looks_right(tab, f"/{kind}.html")
        if kind == "rules":
            await expect(tab.page.locator("tbody ins").first).to_contain_text("rule depth")
        else:
            await expect(tab.page.locator("h2.id")).to_have_count(1)
