"""Statistics on the page: the same numbers as the command's, drawn by the server, and of what is wanted."""

import re

import httpx

from mesh.ops.statistics import DayStatistics
from mesh.ui.statistics import day_bars, shares
from protocol.wire.moves import Transfer
from tests.servers import eventually
from tests.system.office import Office
from tests.ui.conftest import Serve


async def test_the_numbers_are_drawn_and_written(serve: Serve, office: Office) -> None:
    request, work = await office.begun()
    giver = await office.stage.actor("a")
    await giver.propose(request, work, Transfer(to_agent="zoe", summary="no"))  # type: ignore[arg-type]
    again = await giver.work(request, round_=1)
    await giver.propose(request, again, Transfer(to_agent="b", summary="you"))  # type: ignore[arg-type]
    await office.stage.reaches(request, "handoff.admitted")
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:

        async def is_counted() -> bool:
            shown = (await browser.get("/statistics")).text
            return "known_agent" in shown and "a → b" in shown

        await eventually(is_counted)
        shown = (await browser.get("/statistics")).text
        assert re.search(r'<svg class="plot days"[^>]*role="img"', shown)
        assert re.search(r"<code>known_agent</code>.*?<rect width=\"100.0\"", shown)
        assert "style=" not in shown
        none = (await browser.get("/statistics", params={"where": "agent=nobody"})).text
        assert "No request is wanted by that" in none
        assert 'value="agent=nobody"' in none
        wrong = await browser.get("/statistics", params={"where": "agnt=b"})
        assert wrong.status_code == 400
        assert "agent" in wrong.text
        assert 'href="/statistics"' in (await browser.get("/mesh")).text


def test_bars_fill_the_plot_and_their_parts_add_up() -> None:
    assert shares([1, 4, 0]) == [25.0, 100.0, 0.0]
    assert shares([]) == []
    assert shares([0]) == [0.0]
    days = [
        DayStatistics(
            day=day,
            requests=sum(statuses.values()),
            statuses=statuses,
            events=0,
            hops=0,
            refusals=0,
            nano_dollars=0,
        )
        for day, statuses in (("d1", {"completed": 3, "refused": 1}), ("d2", {"open": 1, "cancelled": 1}))
    ]
    first, second = day_bars(days)
    assert [(part.kind, part.top, part.height) for part in first.parts] == [
        ("completed", 25.0, 75.0),
        ("failed", 0.0, 25.0),
    ]
    assert [part.kind for part in second.parts] == ["open", "other"]
    assert min(part.top for part in second.parts) == 50.0
