"""The page in a real browser, before a real mesh: each view, each action, keys, widths, light and dark."""

import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Route, expect

from mesh.model.choice import close_models
from mesh.ops.fork import fork_of
from protocol.wire import events
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Complete, Transfer
from tests import mermaid
from tests.scripted_claude import ask_at
from tests.servers import PATIENCE_S, eventually, until
from tests.ui.browser import PICTURES_FOLDER, Tab
from tests.ui.shop import Advice, Shop

pytestmark = pytest.mark.asyncio(loop_scope="module")
expect.set_options(timeout=PATIENCE_S * 1000)


VIEWS = {
    "requests": "/requests",
    "request": "/requests/{refund}",
    "request-open": "/requests/{open}",
    "diff": "/requests/{refund}/diff/{failed}",
    "diff-with": "/requests/{refund}/diff",
    "event": "/requests/{refund}/events/2",
    "chat": "/chat",
    "people": "/people",
    "escalation": "/people/{escalated}",
    "question": "/people/{asked}",
    "approval": "/people/{approval}",
    "doubt": "/people/{doubted}",
    "agents": "/agents",
    "mesh": "/mesh",
    "batch": "/batches/new?where=status%3Dopen",
    "batch-resolve": "/batches/new?do=resolve&where=status%3Dhuman",
    "batch-letters": "/batches/new?do=resend",
    "statistics": "/statistics",
    "statistics-of-some": "/statistics?where=agent%3Dnobody",
    "letter": "/mesh/dead/1",
    "name": "/me",
}
LOOKS = ((1600, "light"), (1000, "light"), (400, "dark"))
"""Widths and schemes; axe-core looks at the last two, which have every colour and both layouts."""


@pytest.mark.parametrize("view", VIEWS)
async def test_each_view_fits_and_can_be_read_wide_and_narrow_light_and_dark(
    browser: Browser, shop_page: str, shop: Shop, view: str
) -> None:
    path = VIEWS[view].format_map(shop.requests)
    async with Tab(browser, shop_page) as tab:
        page = await tab.open(path)
        await expect(page.locator("h1")).to_be_visible()
        for width, scheme in LOOKS:
            await page.set_viewport_size({"width": width, "height": 900})
            await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            await tab.check_fits()
            if width != 1600:
                await tab.check_accessible()


async def test_keys_choose_rows_open_them_search_and_tell_of_themselves(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    async with Tab(browser, shop_page) as tab:
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


async def test_a_phone_folds_the_filters_away_and_no_two_cells_run_together(
    browser: Browser, shop_page: str
) -> None:
    async with Tab(browser, shop_page, width=400) as tab:
        page = await tab.open("/requests")
        await expect(page.locator("#filters")).to_be_hidden()
        for row in await page.locator("tr[data-row]").all_inner_texts():
            assert not re.search(r"[a-z](now [a-z]|\d+ (s|min) ago)|\d\d*cycle", row), row
        await page.locator("#fold > summary").click()
        await expect(page.locator("#search")).to_be_visible()
        await tab.check_accessible()
        await page.set_viewport_size({"width": 1280, "height": 900})
        await expect(page.locator("#fold > summary")).to_be_hidden()
        await expect(page.locator("#search")).to_be_visible()


async def test_the_most_urgent_decision_stands_first_and_an_effect_is_approved_in_the_list(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    await shop.escalated()
    soon = await shop.begun("Answer me soon")
    question = Ask(to_agent=AgentName("human"), question="May I?", expires_s=600)
    await shop.hop(soon, "triage", question)
    await shop.stage.reaches(soon, "turn.suspended")
    effect = await shop.approval()
    async with Tab(browser, shop_page) as tab:
        page = await tab.open("/people")
        await expect(page.locator("li[data-row]").first).to_have_attribute("data-row", soon)
        waits = await page.locator("li[data-row]").count()
        await expect(page.locator(".bar nav .badge")).to_have_text(str(waits))
        await page.locator(f"li[data-row='{effect}']").get_by_role("button", name="approve").click()
        await expect(page.get_by_role("status").first).to_contain_text("pay_back was approved by Ada")
        await tab.check_accessible()
    done = await shop.stage.reached(effect, events.RequestCompleted)
    assert done.answer == "R-1042"


async def test_a_list_that_asks_again_keeps_the_row_that_is_chosen(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    async with Tab(browser, shop_page) as tab:
        page = await tab.open("/requests?status=failed")
        await page.keyboard.press("j")
        await expect(page.locator("tr.chosen")).to_have_attribute("data-row", shop.requests["failed"])
        new = await shop.failed()
        await expect(page.locator("tbody tr")).to_have_count(2)
        await expect(page.locator("tr.chosen")).to_have_attribute("data-row", shop.requests["failed"])
        await expect(page.locator("tbody tr").first).to_have_attribute("data-row", new)


async def test_the_slider_shows_a_request_as_it_stood_and_a_verdict_tells_why(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    async with Tab(browser, shop_page) as tab:
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


async def test_a_fork_and_its_request_lead_to_each_other(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    old, stage = shop.requests["refund"], shop.stage
    fork = fork_of(await stage.log(old), await stage.bodies(old), 3)
    new = await (await stage.client("ops")).submit_whole(fork)
    await stage.reached(new, events.RequestOpened)
    async with Tab(browser, shop_page) as tab:
        page = await tab.open(f"/requests/{new}")
        await expect(page.locator("main header")).to_contain_text("after event 3")
        await tab.check_fits()
        await page.locator("main header").get_by_role("link", name=old).click()
        await expect(page.locator("#slider output")).to_have_text("3 of 9")  # where the fork began
        back = page.locator("main header").get_by_role("link", name=new, exact=True)

        async def is_linked() -> bool:
            await page.reload()  # the list of requests reads the log behind it
            return await back.count() == 1

        await eventually(is_linked)
        await expect(page.locator("main header")).to_contain_text("forked as")
        await tab.check_accessible()
        await back.click()
        await expect(page.locator("p.id")).to_have_text(new)
        await page.locator("main header").get_by_role("link", name="side by side", exact=True).click()
        await page.wait_for_url(f"**/requests/{old}/diff/{new}")
        await expect(page.locator("main")).to_contain_text("B was forked from A after event 3")
        await expect(page.locator("#first + p")).to_contain_text("move at event 5 of A and the end of B: ask")
        await page.get_by_role("link", name="From the beginning").click()
        await expect(page.locator("#first + p")).to_contain_text("target at event 0: triage → refunds")
        await expect(page.locator("tr.differs ins").first).to_have_text("refunds")
        await tab.check_accessible()
        await page.get_by_role("link", name="Swap").click()
        await expect(page.locator("main")).to_contain_text("A was forked from B after event 3")
        await page.get_by_role("link", name="After the fork").click()
        await expect(page.locator("main code").last).to_have_text(f"mesh diff {new}@0.. {old}@3..")


async def test_a_download_opens_by_itself_and_is_as_accessible(
    browser: Browser, shop_page: str, shop: Shop, tmp_path: Path
) -> None:
    async with Tab(browser, shop_page) as tab:
        page = await tab.open(f"/requests/{shop.requests['refund']}")
        for name, ending in (("HTML", "html"), ("Mermaid", "mmd"), ("JSON", "json")):
            async with page.expect_download() as started:
                await page.get_by_role("link", name=name, exact=True).click()
            await (await started.value).save_as(tmp_path / f"it.{ending}")
        assert mermaid.read((tmp_path / "it.mmd").read_text()).rows > 1
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
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    request = await shop.begun("Does it grow?")
    async with Tab(browser, shop_page) as tab:
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


async def test_a_request_that_is_not_in_the_log_yet_appears_by_itself(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    client = await shop.stage.client("webshop")
    request = client.new_id()
    looked = list[str]()

    async def out_of_reach(route: Route) -> None:
        looked.append(route.request.url)
        await route.fulfill(status=503, content_type="text/html", body="<h1>503</h1>")

    async with Tab(browser, shop_page) as tab:
        tab.expected = ("404 (Not Found)", "503 (Service Unavailable)")
        page = await tab.open(f"/requests/{request}")
        await expect(page.get_by_role("alert")).to_contain_text("there is no request")
        await page.route("**/arrival", out_of_reach)
        await until(lambda: len(looked) >= 2)  # it goes on looking
        await page.unroute("**/arrival")
        await expect(page.get_by_role("heading", level=1)).to_have_text("404")  # and shows no such answer
        await expect(page.get_by_role("status")).to_contain_text("appears here by itself")
        await tab.check_accessible()
        await client.submit("Am I early?", request=request)
        await expect(page.locator(".sequence .row")).to_have_count(1)
        await expect(page.locator("#live-mark")).not_to_have_class(re.compile("off"))


async def test_the_words_of_a_model_are_there_while_its_turn_runs(
    browser: Browser, shop_page: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = Advice()
    async with advice.claude, Tab(browser, shop_page) as tab:
        ask_at(advice.claude.url, monkeypatch)
        await shop.stage.runtime(advice.agent)
        request = await shop.begun("Which colour has the sky?", to="advice", policy="unpriced")
        page = await tab.open(f"/requests/{request}")
        live = page.get_by_label("What happens now")
        await expect(live.locator(".says")).to_contain_text("Let me look it up, I said.")
        await expect(live.locator(".who")).to_have_text("advice")
        await expect(live.locator(".step")).to_contain_text("look_it_up called")
        await expect(page.locator("header .badge.open")).to_be_visible()
        await tab.check_accessible()
        advice.heard.set()
        await expect(page.locator("#answer + pre")).to_have_text("The sky is blue <b>today</b>.")
        await expect(live).to_be_hidden()
        await expect(page.locator("details.steps").first).to_contain_text("look_it_up")
    await close_models()


async def test_light_and_dark_are_chosen_and_stay_chosen(browser: Browser, shop_page: str) -> None:
    async with Tab(browser, shop_page) as tab:
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
    "page-diff": ("/requests/{refund}/diff/{failed}", 1280, "light"),
    "page-people": ("/people", 1280, "light"),
    "page-approval": ("/people/{approval}", 1280, "light"),
    "page-agents": ("/agents", 1280, "light"),
    "page-mesh": ("/mesh", 1280, "light"),
}


if PICTURES_FOLDER:

    @pytest.mark.parametrize("name", PICTURES)
    async def test_pictures_of_the_docs(browser: Browser, shop_page: str, shop: Shop, name: str) -> None:
        path, width, scheme = PICTURES[name]
        async with Tab(browser, shop_page, width=width, scheme=scheme) as tab:
            await tab.open(path.format_map(shop.requests))
            await tab.picture(name)
