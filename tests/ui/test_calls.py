"""The page's view of what each round of a request called."""

import httpx

from mesh.agent.definition import Agent
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S
from tests.system.test_cli_calls import find, pay, works
from tests.ui.conftest import Serve


async def test_it_shows_calls_whole_and_no_strangers_text_is_markup(serve: Serve, stage: Stage) -> None:
    await stage.runtime(Agent("a", works, version="7", tools=(find, pay)))
    client = await stage.client()
    request = await client.submit("where is it?")
    await client.wait(request, timeout_s=PATIENCE_S)
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        assert f"/requests/{request}/calls" in (await browser.get(f"/requests/{request}")).text
        shown = (await browser.get(f"/requests/{request}/calls")).text
        missing = request[:-1] + ("0" if request[-1] != "0" else "1")
        assert (await browser.get(f"/requests/{missing}/calls")).status_code == 404
    assert "tried again at" in shown
    assert "card: secret" in shown
    assert "&lt;b&gt;sent" in shown
    assert "<b>sent" not in shown
    assert "\x1b" not in shown
    assert "4111" not in shown
