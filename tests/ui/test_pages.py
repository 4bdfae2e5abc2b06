"""The page: each view of it, over a real mesh."""

import httpx
import pytest

from tests.system.office import Office
from tests.ui.conftest import Serve

VIEWS = ("/", "/requests", "/people", "/agents", "/mesh", "/me")


@pytest.mark.parametrize("view", VIEWS)
async def test_each_view_is_a_page(serve: Serve, view: str) -> None:
    async with serve() as address, httpx.AsyncClient(base_url=address, follow_redirects=True) as browser:
        answer = await browser.get(view)
        assert answer.status_code == 200, answer.text
        assert "<!doctype html>" in answer.text
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


async def test_a_request_is_shown_with_what_happened_in_it(serve: Serve, office: Office) -> None:
    request = await office.escalated("say <script>alert(1)</script>\x1b[31m")
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        shown = (await browser.get(f"/requests/{request}")).text
        assert "escalate" in shown
        assert "a person, please" in shown
        assert "<script>alert" not in shown
        assert "\x1b" not in shown
        waiting = (await browser.get("/people")).text
        assert request in waiting


async def test_a_request_with_tasks_is_shown_as_a_tree(serve: Serve, office: Office) -> None:
    request = await office.delegated()
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        shown = (await browser.get(f"/requests/{request}")).text
        tasks = shown.partition('<h2 id="tasks">Tasks</h2>')[2].partition("</section>")[0]
        assert "waits for all of: two" in tasks
        assert "one is found" in tasks
        assert tasks.count("<tr>") == 4  # a head, the lead and its tasks
        assert "event" in (await browser.get(f"/requests/{request}", params={"at": 0})).text
        assert "Tasks</h2>" not in (await browser.get(f"/requests/{request}", params={"at": 0})).text
        listed = (await browser.get("/requests", params={"agent": "e"})).text
        assert request in listed


async def test_a_request_is_shown_as_it_stood_after_an_event(serve: Serve, office: Office) -> None:
    request = await office.escalated("hello")
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        then = (await browser.get(f"/requests/{request}", params={"at": 0})).text
        assert "a person, please" not in then.partition("<h2")[2]
        for wrong in ("x", "-1", "9" * 20):
            answer = await browser.get(f"/requests/{request}", params={"at": wrong})
            assert answer.status_code == 400, wrong


async def test_every_event_has_its_json_and_each_verdict_its_grounds(serve: Serve, office: Office) -> None:
    request = await office.escalated("hello")
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        shown = (await browser.get(f"/requests/{request}/events/1")).text
        assert "escalation.raised" in shown
        assert "asked for: escalate" in shown
        assert "&#34;prev&#34;" in shown
        piece = await browser.get(f"/requests/{request}/events/1", headers={"hx-request": "true"})
        assert "<html" not in piece.text
        assert "asked for: escalate" in piece.text
        assert (await browser.get(f"/requests/{request}/events/99")).status_code == 404


async def test_only_the_page_of_a_whole_request_waits_for_it(serve: Serve, office: Office) -> None:
    there = await office.escalated("hello")
    early = (await office.stage.client()).new_id()
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        answer = await browser.get(f"/requests/{early}")
        assert answer.status_code == 404
        assert f'data-hx-get="/requests/{early}/arrival"' in answer.text
        for path in (f"/requests/{early}/events/0", f"/requests/{there}/events/99", "/requests/nobody"):
            assert "arrival" not in (await browser.get(path)).text, path
        for request, refresh in ((early, None), (there, "true")):
            looked = await browser.get(f"/requests/{request}/arrival")
            assert (looked.status_code, looked.headers.get("hx-refresh")) == (204, refresh)


async def test_a_request_is_downloaded_as_its_documented_json(serve: Serve, office: Office) -> None:
    request = await office.escalated("hello")
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        answer = await browser.get(f"/requests/{request}/download/json")
        assert answer.headers["content-disposition"] == f'attachment; filename="{request}.json"'
        document = answer.json()
        assert document["request"] == request
        assert [event["n"] for event in document["events"]] == [0, 1]
