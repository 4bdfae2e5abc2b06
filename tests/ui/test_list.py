"""The list over a real mesh: it follows the log, goes on where it stopped, and is made anew by one option."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from mesh.ops.rows import STATUSES
from mesh.ui import Keys, Options, serving
from tests.servers import eventually
from tests.system.office import Office
from tests.ui.conftest import Serve

HX = {"hx-request": "true"}


def shows(browser: httpx.AsyncClient, request: str, **said: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        answer = await browser.get("/requests", params={"text": request, **said})
        assert answer.status_code == 200, answer.text
        return f'href="/requests/{request}"' in answer.text

    return look


async def test_a_request_is_listed_as_it_stands(serve: Serve, office: Office) -> None:
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        request = await office.escalated("please refund the parcel")
        await eventually(shows(browser, request, status="human", agent="a", client="c1"))
        await office.mesh("human", "resolve", request, "--complete", "--answer", "done")
        await eventually(shows(browser, request, status="completed"))
        assert not await shows(browser, request, status="open")()
        assert not await shows(browser, request, rule="max_depth")()


async def test_the_list_the_view_and_the_commands_say_one_status_and_one_title(
    serve: Serve, office: Office
) -> None:
    waiting, text = await office.escalated("please refund the parcel"), "please refund the parcel"
    ended = await office.escalated(text)
    await office.mesh("human", "resolve", ended, "--complete", "--answer", "done")
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        for request, status, people in ((waiting, "open", True), (ended, "completed", False)):
            await eventually(shows(browser, request, status=status))
            rows = (await office.mesh("request", "ls", "--json")).json
            listed = next(row for row in rows if row["request"] == request)
            shown = (await office.mesh("request", "show", request, "-o", "json")).json
            assert (listed["status"], shown["status"], listed["text"]) == (status, status, text)
            badge = f'<span class="badge {status}">{status}</span>'
            many = (await browser.get("/requests", params={"text": request}, headers=HX)).text
            one = (await browser.get(f"/requests/{request}")).text
            assert f"<h1>{text}</h1>\n{badge}" in one
            assert badge in many
            assert ('<span class="badge people">people</span>' in one) is people
            assert ('<span class="badge people">people</span>' in many) is people
        assert (await shows(browser, waiting, status="human")()) is True
        assert (await shows(browser, ended, status="human")()) is False
        assert 'People <span class="badge people">1</span>' in (await browser.get("/agents")).text


async def test_list_page_and_view_say_one_status_over_every_kind_of_story(
    serve: Serve, office: Office
) -> None:
    """Questions, doubts, freezes, trees and ends: by the same words and the same filters."""
    stories = {
        await office.asked(): {"open", "human"},
        await office.doubted(): {"open", "human"},
        await office.delegated(): {"open"},
        (await office.begun())[0]: {"open"},
        (frozen := await office.escalated()): {"open", "human", "frozen"},
        (cancelled := await office.escalated()): {"cancelled"},
    }
    await office.mesh("request", "freeze", frozen)
    await office.mesh("request", "cancel", cancelled)
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        for request in stories:  # the page follows the log, and the commands go up to its end
            await eventually(shows(browser, request, status=next(iter(stories[request] - {"open"}), "open")))
        for status in STATUSES:
            rows = (await office.mesh("request", "ls", "--status", status, "-n", 1000, "--json")).json
            listed = {row["request"]: row["status"] for row in rows}
            for request, statuses in stories.items():
                (said,) = statuses - {"human", "frozen"}
                assert listed.get(request) == (said if status in statuses else None), (request, status)
                assert await shows(browser, request, status=status)() is (status in statuses)
        for request, statuses in stories.items():
            (said,) = statuses - {"human", "frozen"}
            assert (await office.mesh("request", "show", request, "-o", "json")).json["status"] == said
            assert f'<span class="badge {said}">' in (await browser.get(f"/requests/{request}")).text


async def test_what_is_not_new_is_not_sent_again(serve: Serve, office: Office) -> None:
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        request = await office.escalated()
        await eventually(shows(browser, request, status="human"))
        piece = (await browser.get("/requests", params={"text": request}, headers=HX)).text
        assert "<html" not in piece
        seen = piece.partition("seen=")[2].partition('"')[0]
        again = {"text": request, "seen": seen}
        assert (await browser.get("/requests", params=again, headers=HX)).status_code == 204
        await office.mesh("request", "freeze", request)

        async def is_new() -> bool:
            return (await browser.get("/requests", params=again, headers=HX)).status_code == 200

        await eventually(is_new)
        assert await shows(browser, request, status="frozen")()


async def test_the_list_goes_on_where_it_stopped(
    office: Office, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(store=tmp_path)
    async with serving(keys, options) as address, httpx.AsyncClient(base_url=address) as browser:
        before = await office.escalated("before")
        await eventually(shows(browser, before))
    while_away = await office.escalated("while away")
    await office.mesh("human", "resolve", before, "--complete", "--answer", "done")
    async with serving(keys, options) as address, httpx.AsyncClient(base_url=address) as browser:
        await eventually(shows(browser, while_away, status="human"))
        await eventually(shows(browser, before, status="completed"))
    remade: list[bool] = []
    monkeypatch.setattr("mesh.ops.index.RequestIndex.remake", _noted(remade))
    anew = serving(keys, options._replace(rebuild=True))
    async with anew as address, httpx.AsyncClient(base_url=address) as browser:
        await eventually(shows(browser, before, status="completed"))
    assert remade == [True]


def _noted(remade: list[bool]) -> Callable[..., None]:
    from mesh.ops.index import RequestIndex

    remake = RequestIndex.remake

    def noting(index: RequestIndex) -> None:
        remade.append(True)
        remake(index)

    return noting


async def test_two_pages_may_feed_one_index(office: Office, keys: Keys, tmp_path: Path) -> None:
    options = Options(store=tmp_path)
    async with serving(keys, options) as one, serving(keys, options) as other:
        request = await office.escalated()
        for address in (one, other):
            async with httpx.AsyncClient(base_url=address) as browser:
                await eventually(shows(browser, request))


@pytest.mark.parametrize(
    "said",
    [
        {"status": "angry"},
        {"agent": "' OR 1"},
        {"cost": "much"},
        {"cost": "NaN"},
        {"cost": "-1"},
        {"since": "1y"},
        {"where": "agent=front rule"},
        {"where": "status=open", "status": "open"},
        {"before": "x"},
        {"text": "x" * 201},
    ],
)
async def test_a_filter_that_is_none_is_named(serve: Serve, said: dict[str, str]) -> None:
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        answer = await browser.get("/requests", params=said)
        assert answer.status_code == 400
        assert next(iter(said)) in answer.text
