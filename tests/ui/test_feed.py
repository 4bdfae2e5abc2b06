"""From the log into the list: the same rows come out however it is read, and what cannot be read is named."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from mesh.bus.connection import Bus
from mesh.ui import feed as feeding
from mesh.ui.feed import Feed, end
from mesh.ui.projection import Filter, Listed
from protocol.wire import subjects
from protocol.wire.commands import Escalate, Transfer
from tests.servers import eventually
from tests.system.office import Office


@contextlib.asynccontextmanager
async def fed(bus: Bus, folder: Path, until: Callable[[Feed], bool]) -> AsyncIterator[Feed]:
    """Give a feed that has come so far as `until` says, and goes on."""
    feed = Feed(bus, folder)
    await feed.open()
    running = asyncio.create_task(feed.run())

    async def there() -> bool:
        return until(feed)

    try:
        await eventually(there)
        yield feed
    finally:
        await end(running)
        feed.close()


def listed(feed: Feed) -> list[Listed]:
    return feed.projection.page(Filter(), limit=1_000)


async def walked(office: Office) -> str:
    """A request that was refused a handover, handed over and escalated."""
    request, work = await office.begun("refund it")
    a, b = await office.stage.actor("a"), await office.stage.actor("b")
    await a.propose(request, work, Transfer(to_agent="zoe", summary="no such agent"))  # type: ignore[arg-type]
    again = await a.work(request, round_=1)
    await a.propose(request, again, Transfer(to_agent="b", summary="then you"))  # type: ignore[arg-type]
    await b.propose(request, await b.work(request), Escalate(summary="a person, please"))
    await office.stage.reaches(request, "escalation.raised")
    return request


@pytest.mark.parametrize(("kept", "at_once"), [(1, 1), (1, 500), (2_000, 3)])
async def test_the_rows_are_the_same_however_the_log_is_read(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, at_once: int
) -> None:
    requests = [await walked(office) for _ in range(2)]
    bus = await office.stage.bus("audit")
    last = await office.stage.last_seq("LOG")

    def is_done(feed: Feed) -> bool:
        return feed.projection.seq >= last

    async with fed(bus, tmp_path / "one", is_done) as feed:
        rows, edges = listed(feed), feed.projection.edges()
    monkeypatch.setattr(feeding, "_KEPT", kept)
    monkeypatch.setattr(feeding, "_AT_ONCE", at_once)
    async with fed(bus, tmp_path / "other", is_done) as feed:
        assert listed(feed) == rows
        assert feed.projection.edges() == edges
    counts = {(edge.giver, edge.taker): (edge.passed, edge.refused) for edge in edges}
    assert counts["a", "zoe"][0] == 0
    assert counts["a", "b"][0] >= 2
    assert counts["b", "human"][0] >= 2
    found = {row.request: row for row in rows}
    for request in requests:
        row = found[request]
        assert (row.status, row.holder, row.refusals, row.trail) == ("open", "human", 1, "a → b → human")
        assert {"agent:a", "agent:b", "status:human", "status:open", "client:c1"} <= set(row.tags.split())


async def test_a_request_that_cannot_be_read_is_listed_as_such_and_the_next_ones_are_there(
    office: Office, tmp_path: Path
) -> None:
    broken, whole = await office.escalated(), await office.escalated()
    office.stage.spoiled.add(broken)
    admin = await office.stage.bus("admin")
    head = (await office.last(broken)).n
    event = {"v": 2, "type": "request.unheard_of", "request": broken, "n": head + 1, "at": 1, "to": "_"}
    await admin.publish_durable(subjects.evt("_", broken), msgspec.json.encode(event))
    last = await office.stage.last_seq("LOG")
    bus = await office.stage.bus("audit")
    async with fed(bus, tmp_path, lambda feed: feed.projection.seq >= last) as feed:
        found = {row.request: row.status for row in listed(feed)}
        assert (found[broken], found[whole]) == ("unreadable", "open")
        assert not feed.trouble
