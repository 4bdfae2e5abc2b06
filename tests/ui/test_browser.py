"""The page in a real browser, before a real mesh: each view, each action, keys, widths, light and dark."""

import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from mesh.testing import LocalBus
from mesh.ui import Options, keys_in, serving
from protocol.wire import events, subjects
from protocol.wire.commands import Complete, Transfer
from protocol.wire.events import type_of
from protocol.wire.ids import AgentName
from tests.guard.stage import seed_directory, staged
from tests.logs import plain_logs
from tests.servers import PATIENCE_S
from tests.ui.browser import PICTURES_FOLDER, Tab, chromium
from tests.ui.shop import FLEET, POLICIES, Shop

pytestmark = pytest.mark.asyncio(loop_scope="module")
expect.set_options(timeout=PATIENCE_S * 1000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    """A mesh with every kind of request, for all tests of the module: each changes only its own."""
    with plain_logs(logging.CRITICAL):
        async with LocalBus(FLEET, tmp_path_factory.mktemp("mesh")) as mesh:
            async with mesh.connected_as("admin") as admin:
                for policy in POLICIES:
                    await admin.publish_durable(subjects.policy(policy.name), msgspec.json.encode(policy))
            async with staged(mesh, guards=1) as stage:
                shop = Shop(stage)
                await shop.open()
                yield shop
            await mesh.server.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def address(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    keys = keys_in(shop.stage.mesh.url, seed_directory(shop.stage.mesh), reader="ops", operator="ops")
    options = Options(allow_write=True, by="Ada", store=tmp_path_factory.mktemp("page"))
    async with serving(keys, options) as address:
        yield address


VIEWS = {
    "requests": "/requests",
    "request": "/requests/{refund}",
    "request-open": "/requests/{open}",
    "event": "/requests/{refund}/events/2",
    "people": "/people",
    "escalation": "/people/{escalated}",
    "question": "/people/{asked}",
    "approval": "/people/{approval}",
    "doubt": "/people/{doubted}",
    "agents": "/agents",
    "mesh": "/mesh",
    "letter": "/mesh/dead/1",
    "name": "/me",
}
LOOKS = ((1600, "light"), (1000, "light"), (400, "dark"))
"""Widths and schemes; axe-core looks at the last two, which have every colour and both layouts."""


@pytest.mark.parametrize("view", VIEWS)
async def test_each_view_fits_and_can_be_read_wide_and_narrow_light_and_dark(
    browser: Browser, address: str, shop: Shop, view: str
) -> None:
    path = VIEWS[view].format_map(shop.requests)
    async with Tab(browser, address) as tab:
        page = await tab.open(path)
        await expect(page.locator("h1")).to_be_visible()
        for width, scheme in LOOKS:
            await page.set_viewport_size({"width": width, "height": 900})
            await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            await tab.check_fits()
            if width != 1600:
                await tab.check_accessible()


async def test_keys_choose_rows_open_them_search_and_tell_of_themselves(
    browser: Browser, address: str, shop: Shop
) -> None:
    async with Tab(browser, address) as tab:
        page = await tab.open("/requests")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("k")
        chosen = page.locator("tr.chosen")
        await expect(chosen).to_have_count(1)
        await expect(chosen).to_have_attribute("data-row", shop.requests["open"])
        await page.keyboard.press("?")
        await expect(page.locator("#keys")).to_be_visible()
        await tab.check_accessible()
        await page.keyboard.press("Escape")
        await expect(page.locator("#keys")).to_be_hidden()
        await page.keyboard.press("/")
        await expect(page.locator("#search")).to_be_focused()
        await page.keyboard.type("parcel 7731")
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.keyboard.press("Tab")
        await page.locator("h1").click()
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/requests/" + shop.requests["Where is my parcel 7731?"])
        await page.keyboard.press("g")
        await page.keyboard.press("p")
        await page.wait_for_url("**/people")


async def test_a_list_that_asks_again_keeps_the_row_that_is_chosen(
    browser: Browser, address: str, shop: Shop
) -> None:
    async with Tab(browser, address) as tab:
        page = await tab.open("/requests?status=failed")
        await page.keyboard.press("j")
        await expect(page.locator("tr.chosen")).to_have_attribute("data-row", shop.requests["failed"])
        new = await shop.failed()
        await expect(page.locator("tbody tr")).to_have_count(2)
        await expect(page.locator("tr.chosen")).to_have_attribute("data-row", shop.requests["failed"])
        await expect(page.locator("tbody tr").first).to_have_attribute("data-row", new)


async def test_the_slider_shows_a_request_as_it_stood_and_a_verdict_tells_why(
    browser: Browser, address: str, shop: Shop
) -> None:
    async with Tab(browser, address) as tab:
        page = await tab.open(f"/requests/{shop.requests['refund']}")
        rows = page.locator(".sequence .row")
        await expect(rows).to_have_count(8)
        await expect(page.locator(".sequence .broken .cross")).to_have_count(1)
        await page.locator("#slider input").focus()
        for _ in range(7):
            await page.keyboard.press("ArrowLeft")
        await expect(rows).to_have_count(3)
        await expect(page.locator("#slider output")).to_have_text("2 of 9")
        await expect(page.locator("#slider input")).to_be_focused()
        await expect(page.locator(".events > li")).to_have_count(3)
        await page.locator("#e2 summary").click()
        await expect(page.locator("#e2 .piece")).to_contain_text("Refused by rule `cycle`")
        await expect(page.locator("#e2 .piece pre")).to_contain_text("move.refused")
        await page.locator(".sequence a.row").first.click()
        await expect(page.locator("#e0")).to_have_class(re.compile("chosen"))


async def test_a_download_opens_by_itself_and_is_as_accessible(
    browser: Browser, address: str, shop: Shop, tmp_path: Path
) -> None:
    async with Tab(browser, address) as tab:
        page = await tab.open(f"/requests/{shop.requests['refund']}")
        for name, ending in (("HTML", "html"), ("Mermaid", "mmd"), ("JSON", "json")):
            async with page.expect_download() as started:
                await page.get_by_role("link", name=name, exact=True).click()
            await (await started.value).save_as(tmp_path / f"it.{ending}")
        assert (tmp_path / "it.mmd").read_text().startswith("sequenceDiagram\n")
        assert json.loads((tmp_path / "it.json").read_text())["request"] == shop.requests["refund"]
    async with Tab(browser, f"file://{tmp_path}", width=1000) as tab:
        page = await tab.open("/it.html")
        await expect(page.locator(".sequence .row")).to_have_count(8)
        await expect(page.locator(".events > li")).to_have_count(8)
        painted = await page.locator(".lane rect").first.evaluate("each => getComputedStyle(each).stroke")
        assert painted not in ("none", "rgb(0, 0, 0)")  # its own style sheet is let in by its own policy
        await page.set_viewport_size({"width": 400, "height": 900})
        await tab.check_fits()


async def test_an_open_request_grows_before_the_reader_and_says_when_it_has_ended(
    browser: Browser, address: str, shop: Shop
) -> None:
    request = await shop.begun("Does it grow?")
    async with Tab(browser, address) as tab:
        page = await tab.open(f"/requests/{request}")
        await expect(page.locator(".sequence .row")).to_have_count(1)
        await expect(page.locator("#live-mark")).not_to_have_class(re.compile("off"))
        give = Transfer(to_agent=AgentName("sales"), summary="It does")
        await shop.hop(request, "triage", give)
        await expect(page.locator(".sequence .row")).to_have_count(2)
        await expect(page.locator("#slider output")).to_have_text("1 of 1")
        await shop.hop(request, "sales", Complete(answer="Yes."))
        await expect(page.locator("header .badge.completed")).to_be_visible()
        await expect(page.locator("#answer + pre")).to_have_text("Yes.")


async def test_a_request_is_frozen_thawed_and_cancelled_with_a_reason(
    browser: Browser, address: str, shop: Shop
) -> None:
    request = await shop.begun("Stop me")
    async with Tab(browser, address) as tab:
        page = await tab.open(f"/requests/{request}")
        for order in ("Freeze", "Thaw", "Cancel"):
            await page.get_by_label(f"Reason to {order.lower()} it").fill("the bank is down")
            await page.get_by_role("button", name=order).click()
            await expect(page.get_by_role("status").first).to_contain_text("event")
        await expect(page.locator("header .badge.cancelled")).to_be_visible()
    ordered = [event for event in await shop.stage.log(request) if event.control]
    assert [(type_of(event), event.by, event.reason) for event in ordered] == [  # type: ignore[union-attr]
        (f"request.{what}", "Ada", "the bank is down") for what in ("frozen", "thawed", "cancelled")
    ]


async def test_people_decide_each_kind_of_thing_that_waits(
    browser: Browser, address: str, shop: Shop
) -> None:
    async with Tab(browser, address) as tab:
        page = await tab.open("/people")
        await page.locator(f"[data-row='{shop.requests['asked']}'] .wanted a").click()
        await page.get_by_label("Give it back").select_option("true")
        await page.get_by_label("Amount").fill("12.5")
        await page.get_by_label("reason").select_option("goodwill")
        await page.get_by_role("button", name="Reply").click()
        await expect(page.get_by_role("status").first).to_be_visible()
        replied = await shop.stage.reached(shop.requests["asked"], events.TurnResumed)
        past = replied.work.past[-1]
        assert (past.reply, past.by) == ({"grant": True, "amount": 12.5, "reason": "goodwill"}, "Ada")

        await tab.open(f"/people/{shop.requests['approval']}")
        await expect(page.locator("pre.json")).to_contain_text("42.5")
        await page.get_by_role("button", name="approve").click()
        done = await shop.stage.reached(shop.requests["approval"], events.RequestCompleted)
        assert done.answer == "R-1042"

        await tab.open(f"/people/{shop.requests['doubted']}")
        await page.get_by_role("button", name="it was done", exact=True).click()
        settled = await shop.stage.reached(shop.requests["doubted"], events.EffectSettled)
        assert (settled.outcome, settled.by) == ("done", "Ada")

        await tab.open(f"/people/{shop.requests['escalated']}")
        await page.get_by_label("with an answer of yours").check()
        await page.get_by_role("textbox", name="Answer").fill("Somebody calls you today.")
        await page.get_by_role("button", name="Decide").click()
        ended = await shop.stage.reached(shop.requests["escalated"], events.RequestCompleted)
        assert (ended.answer, ended.by) == ("Somebody calls you today.", "Ada")


async def test_the_mesh_is_frozen_and_thawed_and_a_dead_letter_is_sent_again(
    browser: Browser, address: str, shop: Shop
) -> None:
    async with Tab(browser, address) as tab:
        page = await tab.open("/mesh")
        await expect(page.locator("#findings table")).to_be_visible()
        for order, notice in (("Freeze", 1), ("Thaw", 0)):
            await page.get_by_label("Reason to").fill("the bank is down")
            await page.get_by_role("button", name=order).click()
            await expect(page.locator(".message.warn", has_text="the bank is down")).to_have_count(notice)
        await page.locator("tr[data-row] a").first.click()
        await expect(page.locator("pre").last).to_contain_text('{"kind":"move"')


async def test_light_and_dark_are_chosen_and_stay_chosen(browser: Browser, address: str) -> None:
    async with Tab(browser, address) as tab:
        page = await tab.open("/agents")
        ground = "() => getComputedStyle(document.body).backgroundColor"
        light = await page.evaluate(ground)
        await page.get_by_role("button", name="Show the page dark").click()
        dark = await page.evaluate(ground)
        assert dark != light
        await tab.open("/people")
        assert await page.evaluate(ground) == dark


PICTURES = {
    "page-requests": ("/requests", 1280, "light"),
    "page-request": ("/requests/{refund}", 1280, "light"),
    "page-request-dark": ("/requests/{refund}", 1280, "dark"),
    "page-request-narrow": ("/requests/{refund}", 400, "light"),
    "page-people": ("/people", 1280, "light"),
    "page-approval": ("/people/{approval}", 1280, "light"),
    "page-agents": ("/agents", 1280, "light"),
    "page-mesh": ("/mesh", 1280, "light"),
}


if PICTURES_FOLDER:

    @pytest.mark.parametrize("name", PICTURES)
    async def test_pictures_of_the_docs(browser: Browser, address: str, shop: Shop, name: str) -> None:
        path, width, scheme = PICTURES[name]
        async with Tab(browser, address, width=width, scheme=scheme) as tab:
            await tab.open(path.format_map(shop.requests))
            await tab.picture(name)
