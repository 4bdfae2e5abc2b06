"""What people do on the page, in a real browser before a real mesh: each action, and who may do it."""

import time
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from playwright.async_api import Browser, expect

from mesh.ui import Keys, Options, serving
from protocol.wire import codec, events, subjects
from protocol.wire.commands import MoveProposed
from protocol.wire.config import PARTITIONS
from protocol.wire.events import type_of
from protocol.wire.ids import AgentName
from protocol.wire.moves import Transfer
from protocol.wire.records import dead_letter
from tests.servers import PATIENCE_S
from tests.ui.browser import Tab
from tests.ui.shop import Shop

pytestmark = pytest.mark.asyncio(loop_scope="module")
expect.set_options(timeout=PATIENCE_S * 1000)


async def test_a_request_is_frozen_thawed_and_cancelled_with_a_reason(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    request = await shop.begun("Stop me")
    async with Tab(browser, shop_page) as tab:
        page = await tab.open(f"/requests/{request}")
        for order in ("Freeze", "Thaw", "Cancel"):
            await page.get_by_label(f"Reason to {order.lower()} it").fill("the bank is down")
            await page.get_by_role("button", name=order).click()
            await expect(page.locator("p.message.good")).to_contain_text("event")
        await expect(page.locator("header .badge.cancelled")).to_be_visible()
        await expect(page.locator("p.message.good")).to_contain_text(
            "event"
        )  # after the reload at its end, too
    ordered = [event for event in await shop.stage.log(request) if event.control]
    assert [(type_of(event), event.by, event.reason) for event in ordered] == [  # type: ignore[union-attr]
        (f"request.{what}", "Ada", "the bank is down") for what in ("frozen", "thawed", "cancelled")
    ]


async def test_people_decide_each_kind_of_thing_that_waits(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    async with Tab(browser, shop_page) as tab:
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
        await expect(page.locator("#arguments")).to_contain_text("42.5")
        await page.get_by_role("button", name="approve").click()
        await expect(page.get_by_role("status").first).to_contain_text("pay_back was approved by Ada")
        done = await shop.stage.reached(shop.requests["approval"], events.RequestCompleted)
        assert done.answer == "R-1042"

        await tab.open(f"/people/{shop.requests['doubted']}")
        await expect(page.get_by_label("Its result")).to_be_hidden()
        await page.get_by_label("it was done", exact=True).check()
        await expect(page.get_by_label("Its result")).to_be_visible()
        await page.get_by_role("button", name="Decide").click()
        settled = await shop.stage.reached(shop.requests["doubted"], events.EffectSettled)
        assert (settled.outcome, settled.by) == ("done", "Ada")

        await tab.open(f"/people/{shop.requests['escalated']}")
        await page.get_by_label("tokens").fill("5")  # of another answer: it is hidden, and not sent
        await expect(page.get_by_role("textbox", name="Answer")).to_be_hidden()
        await page.get_by_label("with an answer of yours").check()
        for name in ("to", "dollars", "tokens", "person", "note"):
            await expect(page.locator(f"[name={name}]")).to_be_hidden()
        await page.get_by_role("textbox", name="Answer").fill("Somebody calls you today.")
        await page.get_by_role("button", name="Decide").click()
        ended = await shop.stage.reached(shop.requests["escalated"], events.RequestCompleted)
        assert (ended.answer, ended.by) == ("Somebody calls you today.", "Ada")


async def test_the_mesh_is_frozen_and_thawed_and_a_dead_letter_is_sent_again(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    async with Tab(browser, shop_page) as tab:
        page = await tab.open("/mesh")
        await expect(page.locator("#findings table")).to_be_visible()
        for order, notice in (("Freeze", 1), ("Thaw", 0)):
            await page.get_by_label("Reason to").fill("the bank is down")
            await page.get_by_role("button", name=order).click()
            await expect(page.locator(".message.warn", has_text="the bank is down")).to_have_count(notice)
        await page.locator("tr[data-row] a").first.click()
        await expect(page.locator("pre").last).to_contain_text('{"kind":"move"')


async def test_an_escalation_is_assigned_and_given_to_an_agent(
    browser: Browser, shop_page: str, shop: Shop
) -> None:
    request = await shop.escalated()
    async with Tab(browser, shop_page) as tab:
        page = await tab.open(f"/people/{request}")
        await page.get_by_label("a person looks at it first").check()
        await page.get_by_label("Assign to").fill("Grace")
        await page.get_by_role("button", name="Decide").click()
        await expect(page.get_by_role("status").first).to_contain_text("is Grace's to look at")
        await expect(page.locator(f"[data-row='{request}']")).to_contain_text("Grace looks at it")
        await tab.check_accessible()
        assigned = await shop.stage.reached(request, events.EscalationAssigned)
        assert (assigned.person, assigned.by) == ("Grace", "Ada")

        await tab.open(f"/people/{request}")
        await page.get_by_label("to an agent").check()
        await page.locator("select[name=to]").select_option("sales")
        await page.get_by_label("A note to the agent that gets it").fill("Be kind")
        await page.get_by_role("button", name="Decide").click()
        await expect(page.get_by_role("status").first).to_contain_text("went to sales")
        given = await shop.stage.reached(request, events.EscalationResolved)
        assert (given.to, given.summary, given.by) == ("sales", "Be kind", "Ada")


async def test_an_effect_is_denied_and_does_not_happen(browser: Browser, shop_page: str, shop: Shop) -> None:
    request = await shop.approval()
    async with Tab(browser, shop_page) as tab:
        page = await tab.open(f"/people/{request}")
        await page.get_by_label("Reason, if you deny").fill("paid twice already")
        await page.get_by_role("button", name="deny").click()
        await expect(page.get_by_role("status").first).to_contain_text("pay_back was denied by Ada")
        await tab.check_accessible()
    past = (await shop.stage.reached(request, events.TurnResumed)).work.past[-1]
    assert (past.reply, past.by, past.reason) == (False, "Ada", "paid twice already")
    await shop.stage.reaches(request, "escalation.raised")  # by the agent, which does not expect a no
    assert b"a tool said no (not_approved)" in (await shop.stage.bodies(request))[-1]


async def test_a_doubt_is_settled_as_not_done(browser: Browser, shop_page: str, shop: Shop) -> None:
    request = await shop.doubted()
    async with Tab(browser, shop_page) as tab:
        page = await tab.open(f"/people/{request}")
        await page.get_by_label("it was not done: do it now").check()
        await page.get_by_role("button", name="Decide").click()
        await expect(page.get_by_role("status").first).to_contain_text("settled as not done")
        await tab.check_accessible()
    settled = await shop.stage.reached(request, events.EffectSettled)
    assert (settled.outcome, settled.by) == ("not_done", "Ada")


async def test_a_dead_letter_is_sent_again_and_decided(browser: Browser, shop_page: str, shop: Shop) -> None:
    request = await shop.begun("It was lost on its way")
    work = await (await shop.stage.actor("triage")).work(request)
    move = MoveProposed(turn=work.turn, round=0, move=Transfer(to_agent=AgentName("sales"), summary="here"))
    letter = dead_letter(
        at=time.time_ns() // 1000,
        by="guard",
        code="guard_failed",
        detail="the guard's disk was full",
        subject=f"mesh.prop.{subjects.partition(request, PARTITIONS)}.triage.{request}",
        data=codec.encode(move),
    )
    letter = msgspec.structs.replace(letter, sender="triage", request=request)
    guard = await shop.stage.bus("guard")
    ack = await guard.publish_durable(subjects.dead_from("triage"), msgspec.json.encode(letter))
    async with Tab(browser, shop_page) as tab:
        page = await tab.open("/mesh")
        await page.locator(f"tr[data-row] a[href='/mesh/dead/{ack.seq}']").click()
        await page.get_by_role("button", name="Resend").click()
        await expect(page.get_by_role("status").first).to_contain_text("handoff.admitted")
        await tab.check_accessible()
    assert (await shop.stage.reached(request, events.HandoffAdmitted)).work.handoff.summary == "here"


TOKEN, OLD = "a token of more than sixteen characters", "the token of the day before"


async def test_a_visitor_shows_the_token_and_an_old_or_wrong_one_opens_nothing(
    browser: Browser, shop: Shop, shop_keys: Keys, page_port: int, tmp_path: Path
) -> None:
    options, request = Options(allow_write=True, store=tmp_path, port=page_port), await shop.escalated()
    async with Tab(browser, "") as tab:
        tab.expected = ("403 (Forbidden)",)
        page = tab.page
        async with serving(shop_keys, options._replace(token=OLD)) as tab.address:
            await tab.open(f"/people?token={quote(OLD)}")
            await page.wait_for_url("**/people")  # the token left the address
            await expect(page.locator("ol.queue")).to_be_visible()
            await tab.leave()
        async with serving(shop_keys, options._replace(token=TOKEN)) as tab.address:
            await tab.open("/people")  # the old session ended with the page
            await expect(page.locator("h1")).to_have_text("Enter the token")
            await tab.check_accessible()
            for said in (OLD, "not it"):
                await page.get_by_label("Token").fill(said)
                await page.get_by_role("button", name="Open the page").click()
                await expect(page.get_by_label("Token")).to_have_value("")  # of the answer
                await expect(page.get_by_role("alert")).to_contain_text("That is not the token")
            await tab.check_accessible()
            await tab.open(f"/people?token={quote(OLD)}")
            await expect(page.get_by_role("alert")).to_contain_text("That is not the token")
            await page.get_by_label("Token").fill(TOKEN)
            await page.get_by_role("button", name="Open the page").click()
            await page.wait_for_url("**/people")
            await page.goto("about:blank")
            await page.set_content(f"<a href='{tab.address}/people/{request}'>look</a>")
            await page.get_by_role("link", name="look").click()  # as from a chat
            await expect(page.locator("#wanted")).to_be_visible()
            await page.get_by_role("link", name="enter your name").click()
            await page.get_by_role("button", name="Log out").click()
            await expect(page.locator("h1")).to_have_text("Enter the token")
            await tab.leave()


async def test_a_visitor_says_their_name_once_and_it_is_recorded(
    browser: Browser, shop: Shop, shop_keys: Keys, tmp_path: Path
) -> None:
    first, second = await shop.escalated(), await shop.escalated()
    async with serving(shop_keys, Options(allow_write=True, store=tmp_path)) as own, Tab(browser, own) as tab:
        page = await tab.open(f"/people/{first}")
        await page.get_by_label("Your name").fill("Grace")  # there is one such field
        await page.get_by_label("a person looks at it first").check()
        await page.get_by_label("Assign to").fill("Linus")
        await page.get_by_role("button", name="Decide").click()
        await expect(page.get_by_role("link", name="Grace")).to_be_visible()
        await tab.open(f"/people/{second}")
        await expect(page.get_by_label("Your name")).to_have_count(0)
        await page.get_by_label("a person looks at it first").check()
        await page.get_by_label("Assign to").fill("Linus")
        await page.get_by_role("button", name="Decide").click()
        await expect(page.get_by_role("status").first).to_be_visible()
    for request in (first, second):
        assert (await shop.stage.reached(request, events.EscalationAssigned)).by == "Grace"


async def test_a_page_that_only_shows_offers_nothing_and_refuses_what_is_sent_all_the_same(
    browser: Browser, shop: Shop, shop_keys: Keys, tmp_path: Path
) -> None:
    request = await shop.escalated()
    views = (f"/people/{request}", f"/requests/{request}", "/mesh", "/mesh/dead/1")
    async with serving(shop_keys, Options(by="Ada", store=tmp_path)) as own, Tab(browser, own) as tab:
        tab.expected = ("403 (Forbidden)",)
        for view in views:
            page = await tab.open(view)
            await expect(page.locator(".badge", has_text="read-only")).to_be_visible()
            await expect(page.locator("form[method=post]")).to_have_count(0)
            await tab.check_accessible()
        await tab.open("/me")
        csrf = await page.locator("input[name=csrf]").first.input_value()
        said = f"csrf={csrf}&n=1&how=complete&answer=42&reason=x"
        for path in (f"/people/{request}/resolve", f"/requests/{request}/order/cancel", "/mesh/freeze"):
            answer = await page.evaluate(
                """async ([path, body]) => {
                    const headers = {"content-type": "application/x-www-form-urlencoded"};
                    const answer = await fetch(path, {method: "POST", headers, body});
                    return [answer.status, await answer.text()];
                }""",
                [path, said],
            )
            assert answer[0] == 403
            assert "this page is read-only; nothing was done: start it with --allow-write" in answer[1]
    assert (await shop.stage.types(request))[-1] == "escalation.raised"
