"""Many requests at once, in a real browser: filters saved under names, and one action for all of a filter."""

import pytest
from playwright.async_api import Browser, expect

from protocol.wire import events
from tests.servers import PATIENCE_S, eventually
from tests.ui.browser import Tab
from tests.ui.shop import Shop

pytestmark = pytest.mark.asyncio(loop_scope="module")
expect.set_options(timeout=PATIENCE_S * 1000)


async def test_a_filter_is_saved_under_a_name_and_is_one_click_away_on_both_views(
    browser: Browser, shop_page: str
) -> None:
    async with Tab(browser, shop_page) as tab:
        page = await tab.open("/requests")
        saved, told = page.locator("#saved"), page.locator("#saved [role=status]")
        await saved.get_by_text("Save this filter").click()
        await saved.get_by_label("Name").fill("too early")
        await page.keyboard.press("Enter")
        await expect(told).to_contain_text("There is no filter yet")
        await page.get_by_label("Status").select_option("failed")
        await page.get_by_label("Where").fill('agent=triage text="my order"')
        await expect(page.locator("#watch")).to_have_attribute(
            "data-where", 'status=failed agent=triage text="my order"'
        )
        await saved.get_by_label("Name").fill("lost <b>orders</b>")
        await page.keyboard.press("Enter")
        await expect(told).to_contain_text("is saved in this browser")
        link = saved.get_by_role("link", name="lost <b>orders</b>")
        await expect(link).to_have_attribute("aria-current", "true")
        await tab.check_accessible()

        await tab.open("/statistics")
        await expect(link).not_to_have_attribute("aria-current", "true")
        await link.click()
        await expect(page.get_by_label("Where")).to_have_value('status=failed agent=triage text="my order"')
        await expect(link).to_have_attribute("aria-current", "true")
        await page.set_viewport_size({"width": 400, "height": 900})
        await tab.check_fits()
        await tab.check_accessible()

        await tab.open("/requests")
        await tab.check_fits()
        await link.click()  # on a phone, where the filters are folded away, too
        await expect(page.locator("#rows tbody tr")).to_have_count(1)
        await saved.get_by_role("button", name="Forget the filter lost").click()
        await expect(link).to_have_count(0)
        await tab.open("/statistics")
        await expect(link).to_have_count(0)


async def test_what_else_lies_there_in_the_browser_does_no_harm(browser: Browser, shop_page: str) -> None:
    async with Tab(browser, shop_page) as tab:
        page = await tab.open("/requests?where=status%3Dfailed")
        for kept in ("{", "7", '[null, 1, {"name": 1, "where": "a"}]'):
            await page.evaluate("kept => localStorage.setItem('mesh-filters', kept)", kept)
            await page.reload()
            await expect(page.locator("#saved")).to_be_visible()
            await expect(page.locator("#saved li")).to_have_count(0)
        full = [{"name": f"f{n}", "where": "status=open"} for n in range(50)]
        await page.evaluate("kept => localStorage.setItem('mesh-filters', JSON.stringify(kept))", full)
        await page.reload()
        await page.locator("#saved").get_by_text("Save this filter").click()
        await page.locator("#saved").get_by_label("Name").fill("one more")
        await page.keyboard.press("Enter")
        await expect(page.locator("#saved [role=status]")).to_contain_text("forget one first")


async def test_all_that_a_filter_finds_are_frozen_and_cancelled_after_one_yes(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    found = [await shop.begun(f"Stop the whole lot {n}") for n in range(5)]
    async with Tab(browser, shop_page, width=400) as tab:
        page = await tab.open("/requests?text=whole%20lot")
        await expect(page.locator("#rows tbody tr")).to_have_count(5)
        await page.get_by_role("link", name="Act on all that match").click()
        await expect(page.get_by_label("Where")).to_have_value('text="whole lot"')
        await expect(page.get_by_label("Reason")).to_be_hidden()
        await tab.check_accessible()
        await page.get_by_label("freeze: open requests wait").check()
        await page.get_by_label("Reason").fill("the bank is down")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="5 requests to freeze")).to_be_visible()
        await expect(page.locator("li[data-row]")).to_have_count(3)
        await expect(page.locator("main")).to_contain_text("and 2 more")
        await tab.check_fits()
        await tab.check_accessible()
        await page.get_by_role("button", name="Freeze 5 requests").click()
        await expect(page.get_by_role("heading", name="Done")).to_be_visible()
        await expect(page.locator("main")).to_contain_text("5 of 5 frozen")
        await tab.check_fits()
        await tab.check_accessible()
        await page.get_by_role("link", name="What it did").click()
        rows = page.locator("#rows tbody tr")

        async def are_listed() -> bool:
            await page.reload()  # the list reads the log behind it
            return await rows.count() == 5

        await eventually(are_listed)
        await expect(rows.first).to_contain_text("frozen")
    for request in found:
        frozen = await shop.stage.reached(request, events.RequestFrozen)
        assert (frozen.by, frozen.reason) == ("Ada", "the bank is down")


async def test_a_comparison_is_walked_by_keys(browser: Browser, shop_page: str, shop: Shop) -> None:
    one, other = shop.requests["refund"], shop.requests["failed"]
    async with Tab(browser, shop_page) as tab:
        page = await tab.open(f"/requests/{one}")
        await page.get_by_role("link", name="Compare").click()
        await page.get_by_label("With the request").fill(other)
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/requests/{one}/diff/{other}")
        for _ in range(2):
            await page.locator("h1").click()
            await page.keyboard.press("j")
        await expect(page.locator("tr.chosen")).to_contain_text("1 triage → billing transfer")
        await expect(page.locator("tr.chosen td").nth(1)).to_contain_text("fail")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/requests/{one}/events/1")


async def test_escalations_are_resolved_together_from_the_queue(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    found = [await shop.escalated() for _ in range(2)]
    async with Tab(browser, shop_page) as tab:
        tab.expected = ("400 (Bad Request)",)
        page = await tab.open("/people")
        await page.get_by_role("link", name="Resolve many").click()
        await page.get_by_label("Where").fill('status=human text="a complaint" text=x')
        await page.get_by_label("with an answer of yours").check()
        await page.get_by_role("textbox", name="Answer").fill("Somebody calls you today.")
        await page.get_by_role("button", name="Show which").click()
        await expect(page.get_by_role("alert")).to_contain_text("text is there twice")
        await tab.check_accessible()
        await page.get_by_label("Where").fill('status=human text="my complaint"')
        await page.get_by_role("button", name="Show which").click()
        await tab.check_accessible()
        await page.get_by_role("button", name="Resolve").click()
        await expect(page.get_by_role("heading", name="Done")).to_be_visible()
    for request in found:
        ended = await shop.stage.reached(request, events.RequestCompleted)
        assert (ended.answer, ended.by) == ("Somebody calls you today.", "Ada")
