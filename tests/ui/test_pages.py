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
