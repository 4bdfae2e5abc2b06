"""The page's chat in a real browser: words as they come, a question in place, cancel, keys, 400 pixels."""

import asyncio
import re

import pytest
from playwright.async_api import Browser, Page, expect

from mesh.agent._steps import key_of
from mesh.agent._telemetry import LiveOutput
from protocol.wire import events
from protocol.wire.commands import Freeze
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Complete, Transfer
from tests.servers import PATIENCE_S, eventually, fresh
from tests.ui.browser import Tab
from tests.ui.shop import Shop

pytestmark = pytest.mark.asyncio(loop_scope="module")
expect.set_options(timeout=PATIENCE_S * 1000)


async def says(page: Page, text: str) -> None:
    """Type a message and send it with the enter key."""
    box = page.get_by_label("Message")
    await expect(box).to_be_focused()
    await page.keyboard.type(text)
    await page.keyboard.press("Enter")


async def under_way(page: Page, shop: Shop) -> str:
    """Return the request of the message that is under way, once the page follows it."""
    turn = page.locator("#turn[data-request]")
    await expect(turn).to_be_visible()
    request = await turn.get_attribute("data-request")
    assert request is not None
    await shop.stage.reaches(request, "request.opened")
    return request


async def test_words_come_as_they_are_said_and_the_answer_stands_in_their_place(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    async with Tab(browser, shop_page, width=400, scheme="dark") as tab:
        page = await tab.open("/chat")
        await says(page, "Where is it?")
        request = await under_way(page, shop)
        await expect(page.locator("#talk .you p")).to_have_text("Where is it?")
        actor = await shop.stage.actor("triage")
        work = await actor.work(request)
        live = LiveOutput(actor.bus.send, key_of("triage", request, work))

        async def talk() -> None:
            while True:  # a note that nobody listens to yet is lost
                live.hear("It is ")
                await asyncio.sleep(0.05)

        talking = asyncio.create_task(talk())
        try:
            await expect(page.locator("#live .says")).to_contain_text("It is It is")
            await expect(page.locator("#live .who")).to_have_text("triage")
            await tab.check_fits()
            await tab.check_accessible()
        finally:
            talking.cancel()
            live.close()
        await shop.hop(request, "triage", Complete(answer="It is on its way."))
        await expect(page.locator("#talk .answered p")).to_have_text("It is on its way.")
        await expect(page.locator("#live")).to_be_hidden()
        await tab.check_fits()
        await tab.check_accessible()
        await says(page, "Thank you")  # the field has the focus again
        second = await under_way(page, shop)
        opened = await shop.stage.reached(second, events.RequestOpened)
        assert opened.continued is not None
        assert opened.continued.last == "triage"
        await expect(page.locator("#talk li")).to_have_count(3)
        await shop.hop(second, "triage", Complete(answer="You are welcome."))
        await expect(page.locator("#talk .answered p").last).to_have_text("You are welcome.")


async def test_a_question_is_answered_in_place_and_the_next_message_goes_to_whoever_asked(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    schema = {"type": "object", "properties": {"card": {"enum": ["4242", "1881"]}}, "required": ["card"]}
    async with Tab(browser, shop_page) as tab:
        page = await tab.open("/chat")
        await says(page, "I was charged twice for order 1042.")
        request = await under_way(page, shop)
        await shop.hop(request, "triage", Transfer(to_agent=AgentName("billing"), summary="twice"))
        ask = Ask(to_agent=AgentName("ops"), question="Which card?", schema=schema)
        await shop.hop(request, "billing", ask)
        await expect(page.get_by_role("heading", name="Reply to billing")).to_be_visible()
        await expect(page.locator("#talk .asked p")).to_have_text("Which card?")
        await tab.check_accessible()
        await tab.picture("page-chat")
        await page.get_by_label("card").select_option('"1881"')
        await page.get_by_role("button", name="Reply").click()
        resumed = await shop.stage.reached(request, events.TurnResumed)
        assert (resumed.work.past[-1].reply, resumed.work.past[-1].by) == ({"card": "1881"}, "Ada")
        await expect(page.locator("#talk .you p").last).to_have_text('{"card":"1881"}')
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.locator("#talk .ended p")).to_contain_text("cancelled by Ada")
        cancelled = await shop.stage.reached(request, events.RequestCancelled)
        assert cancelled.reason == "cancelled in the chat"
        await says(page, "The other one")
        second = await under_way(page, shop)
        assert (await shop.stage.reached(second, events.RequestOpened)).to == "billing"
        await shop.hop(second, "billing", Complete(answer="Done."))
        await expect(page.locator("#talk .answered p").last).to_have_text("Done.")


async def test_a_reply_that_is_being_typed_stays_when_something_else_happens(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    async with Tab(browser, shop_page) as tab:
        page = await tab.open("/chat")
        await says(page, "A gift")
        request = await under_way(page, shop)
        await shop.hop(request, "triage", Ask(to_agent=AgentName("ops"), question="For whom?"))
        field = page.get_by_label("Reply")
        await field.fill("for my mo")
        head = await page.locator("#talk").get_attribute("data-sign")
        assert head is not None
        await shop.stage.control(request, Freeze(id=fresh(), reason="wait"), "ops")
        await shop.stage.reaches(request, "request.frozen")
        await expect(page.locator("#talk")).not_to_have_attribute("data-sign", head)
        await expect(field).to_have_value("for my mo")
        await expect(field).to_be_focused()
        await page.get_by_role("button", name="Cancel").click()
        await shop.stage.reaches(request, "request.cancelled")


async def test_a_chat_is_begun_with_an_agent_gone_on_with_and_found_again(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    async with Tab(browser, shop_page, width=400) as tab:
        page = await tab.open("/requests")
        await page.keyboard.press("g")
        await page.keyboard.press("c")
        await page.wait_for_url("**/chat")
        await tab.check_fits()
        await tab.check_accessible()
        await page.get_by_label("Begin with").select_option("sales")
        await page.get_by_label("Message").fill("Two of the green ones")
        await page.get_by_label("Message").press("Shift+Enter")
        await page.get_by_label("Message").press("Enter")
        request = await under_way(page, shop)
        assert (await shop.stage.reached(request, events.RequestOpened)).to == "sales"
        await shop.hop(request, "sales", Complete(answer={"price": 12.5}))
        await expect(page.locator("#talk .answered p")).to_have_text('{"price":12.5}')
        conversation = await page.locator("main .id").first.inner_text()
        link = page.get_by_role("link", name="Two of the green ones")

        async def is_listed() -> bool:
            await tab.open("/chat")  # the list of requests reads the log behind it
            return await link.count() == 1

        await eventually(is_listed, PATIENCE_S)
        await link.click()
        await expect(page.locator("main .id").first).to_have_text(conversation)
        await expect(page.locator("#talk li")).to_have_count(2)
        await expect(page).to_have_title(re.compile("Two of the green ones"))
        await page.get_by_role("link", name=f"Request {request}").click()
        await page.wait_for_url(f"**/requests/{request}")
