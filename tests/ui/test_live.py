"""What happens at this moment, on the page: the model's words as they come, the log as it grows, the end."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from mesh.ui import Keys, Options, serving
from protocol.wire import codec, subjects
from protocol.wire.moves import Complete
from protocol.wire.records import LiveNote
from tests.servers import PATIENCE_S
from tests.system.office import Office
from tests.ui.conftest import Serve


async def events_of(answer: httpx.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


async def test_a_running_turn_is_heard_until_its_request_ends(serve: Serve, office: Office) -> None:
    request, work = await office.begun()
    agent = await office.stage.actor("a")
    words = "<script>hello\x1b[31m</script>"
    note = LiveNote(v=1, turn=work.turn, round=0, n=0, at=1, kind="text", text=words)
    async with (
        serve() as address,
        httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as browser,
        browser.stream("GET", f"/requests/{request}/live") as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        said = events_of(answer)
        assert await anext(said) == ("grown", {"n": 0})

        async def talk() -> None:
            while True:  # core NATS: what nobody listens to yet is lost
                agent.bus.send(subjects.live("c1", request, "a", work.turn), codec.encode(note))
                await asyncio.sleep(0.05)

        talking = asyncio.create_task(talk())
        heard = await anext(said)
        talking.cancel()
        assert heard[0] == "note"
        data = heard[1]
        assert (data["agent"], data["kind"], data["text"]) == ("a", "text", words)
        await agent.propose(request, work, Complete(answer="done"))
        rest = [each async for each in said]
    names = [name for name, _ in rest if name != "note"]
    assert (names[0], rest[-1]) == ("grown", ("ended", {"type": "request.completed"}))


async def test_without_the_clients_key_the_log_is_heard_all_the_same(
    office: Office, keys: Keys, tmp_path: Any
) -> None:
    alone = keys._replace(of=lambda name: None)
    request, work = await office.begun()
    async with (
        serving(alone, Options(store=tmp_path)) as address,
        httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as browser,
        browser.stream("GET", f"/requests/{request}/live") as answer,
    ):
        said = events_of(answer)
        assert await anext(said) == ("grown", {"n": 0})
        await (await office.stage.actor("a")).propose(request, work, Complete(answer="done"))
        assert [name async for name, _ in said][-2:] == ["grown", "ended"]


async def test_a_page_that_ends_ends_its_streams(serve: Serve, office: Office) -> None:
    request, _ = await office.begun()
    async with httpx.AsyncClient(timeout=PATIENCE_S) as browser:
        async with serve() as address:
            stream = browser.stream("GET", f"{address}/requests/{request}/live")
            answer = await stream.__aenter__()
            said = events_of(answer)
            assert await anext(said) == ("grown", {"n": 0})
        assert [each async for each in said] == []
        await stream.__aexit__(None, None, None)
