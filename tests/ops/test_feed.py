"""From the log into the list: the same rows come out however it is read, and what cannot be read is named."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from mesh.bus.connection import Bus
from mesh.ops import requests
from mesh.ops.feed import SIZES, IndexFeed, Sizes, end
from mesh.ops.rows import Listed
from mesh.ops.where import Filter
from protocol.wire import subjects
from protocol.wire.moves import Escalate, Transfer
from tests.servers import eventually
from tests.system.office import Office


@contextlib.asynccontextmanager
async def fed(
    bus: Bus, folder: Path, until: Callable[[IndexFeed], bool], sizes: Sizes = SIZES
) -> AsyncIterator[IndexFeed]:
    """Give a feed that has come so far as `until` says, and goes on."""
    async with IndexFeed(bus, folder, sizes=sizes) as feed:
        running = asyncio.create_task(feed.run())

        async def there() -> bool:
            return until(feed)

        try:
            await eventually(there)
            yield feed
        finally:
            await end(running)


def listed(feed: IndexFeed) -> list[Listed]:
    return feed.index.page(Filter(), limit=1_000)


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
    office: Office, tmp_path: Path, kept: int, at_once: int
) -> None:
    requests = [await walked(office) for _ in range(2)]
    bus = await office.stage.bus("audit")
    last = await office.stage.last_seq("LOG")

    def is_done(feed: IndexFeed) -> bool:
        return feed.index.seq >= last

    async with fed(bus, tmp_path / "one", is_done) as feed:
        rows, edges = listed(feed), feed.index.edges()
        tags = ("agent:a", "agent:b", "status:human", "status:open", "client:c1")
        tagged = [{row.request for row in feed.index.page(Filter(tags=(tag,)), limit=1_000)} for tag in tags]
    async with fed(bus, tmp_path / "other", is_done, Sizes(folds=kept, written=at_once)) as feed:
        assert listed(feed) == rows
        assert feed.index.edges() == edges
    counts = {(edge.giver, edge.taker): (edge.passed, edge.refused) for edge in edges}
    assert counts["a", "zoe"][0] == 0
    assert counts["a", "b"][0] >= 2
    assert counts["b", "human"][0] >= 2
    found = {row.request: row for row in rows}
    for request in requests:
        row = found[request]
        assert (row.status, row.holder, row.refusals, row.trail) == ("open", "human", 1, "a → b → human")
        assert all(request in each for each in tagged)


@pytest.mark.parametrize("written", [1, 500])
async def test_a_request_that_cannot_be_read_is_listed_as_such_and_the_next_ones_are_there(
    office: Office, tmp_path: Path, written: int
) -> None:
    """It keeps the text that it began with, however the log is read."""
    broken, whole = await office.escalated(), await office.escalated()
    office.stage.spoiled.add(broken)
    admin = await office.stage.bus("admin")
    head = (await office.last(broken)).n
    event = {"v": 2, "type": "request.unheard_of", "request": broken, "n": head + 1, "at": 1, "to": "_"}
    await admin.publish_durable(subjects.evt("_", broken), msgspec.json.encode(event))
    last = await office.stage.last_seq("LOG")
    bus = await office.stage.bus("audit")
    async with fed(bus, tmp_path, lambda feed: feed.index.seq >= last, Sizes(written=written)) as feed:
        found = {row.request: row for row in listed(feed)}
        assert (found[broken].status, found[whole].status) == ("unreadable", "open")
        assert found[broken].text == found[whole].text == "hello"
        assert not feed.trouble
        by_text = feed.index.page(Filter(text="hello"), limit=1_000)
        assert {broken, whole} <= {row.request for row in by_text}


async def test_an_index_that_begins_near_the_end_has_every_request_with_an_event_since(
    office: Office, tmp_path: Path
) -> None:
    old, going = await walked(office), await walked(office)
    last = await office.stage.last_seq("LOG")
    await office.mesh("human", "resolve", going, "--complete", "--answer", "done")
    newer = await office.escalated()
    end = await office.stage.last_seq("LOG")
    bus = await office.stage.bus("audit")
    async with IndexFeed(bus, tmp_path / "whole") as feed:
        await feed.catch_up()
        whole = {row.request: row for row in listed(feed)}
    sizes = Sizes(newest=end - last)
    async with IndexFeed(bus, tmp_path / "partial", whole=False, sizes=sizes) as feed:
        await feed.catch_up()
        assert (feed.index.is_whole, feed.behind) == (False, 0)
        found = {row.request: row for row in listed(feed)}
        assert set(found) == {going, newer}
        for request, row in found.items():
            assert msgspec.structs.replace(row, id=0) == msgspec.structs.replace(whole[request], id=0)
        aged = Filter(since=whole[going].opened)
        assert {row.request for row in feed.index.page(aged, limit=9)} == {going, newer}
    async with fed(bus, tmp_path / "partial", lambda feed: feed.index.is_whole and not feed.behind) as feed:
        assert {row.request: row for row in listed(feed)} == whole
        assert old in whole


async def test_several_feed_one_file_and_each_counts_a_hand_over_once(office: Office, tmp_path: Path) -> None:
    for _ in range(3):
        await walked(office)
    bus = await office.stage.bus("audit")
    sizes = Sizes(written=2)
    async with contextlib.AsyncExitStack() as stack:
        feeds = [
            await stack.enter_async_context(IndexFeed(bus, tmp_path / "shared", sizes=sizes))
            for _ in range(3)
        ]
        remade = asyncio.create_task(asyncio.to_thread(feeds[0].index.remake))
        await asyncio.gather(remade, *(feed.catch_up() for feed in feeds))

        async def alike() -> bool:  # the log may grow meanwhile
            async with IndexFeed(bus, tmp_path / "one") as one:
                for feed in (*feeds, one):
                    await feed.catch_up()
                found = [(listed(feed), feed.index.edges()) for feed in (*feeds, one)]
                return all(each == found[0] for each in found)

        await eventually(alike)


async def test_a_feed_that_was_killed_is_gone_on_with(office: Office, tmp_path: Path) -> None:
    for _ in range(2):
        await walked(office)
    bus = await office.stage.bus("audit")
    async with IndexFeed(bus, tmp_path / "one") as feed:
        await feed.catch_up()
        rows, edges = listed(feed), feed.index.edges()
        log = feed.index._log
        path = feed.index._path
    program = (
        "import os, pathlib, signal, sys; from mesh.ops.index import RequestIndex\n"
        "index = RequestIndex(pathlib.Path(sys.argv[1]), sys.argv[2])\n"
        "def rows():\n    os.kill(os.getpid(), signal.SIGKILL); yield\n"
        "index.remake(); index.put(rows(), 0, 5)"
    )
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", program, path, log)
    assert await killed.wait() == -signal.SIGKILL
    async with IndexFeed(bus, tmp_path / "one") as feed:
        await feed.catch_up()
        assert (listed(feed), feed.index.edges()) == (rows, edges)


@pytest.mark.parametrize("harm", ["a damaged page", "no folder"])
async def test_a_file_that_cannot_be_used_is_done_without(office: Office, tmp_path: Path, harm: str) -> None:
    request = await walked(office)
    bus = await office.stage.bus("audit")

    async def look(folder: Path) -> list[Listed]:
        return await requests.from_index(bus, lambda index: index.page(Filter(), limit=1_000), folder=folder)

    rows = await look(tmp_path)
    assert request in {row.request for row in rows}
    assert await look(spoiled(tmp_path, harm)) == rows
    if harm == "a damaged page":
        async with IndexFeed(bus, tmp_path) as feed:
            assert feed.index._read("PRAGMA integrity_check") == [("ok",)]
            assert listed(feed) == rows


async def test_a_page_whose_file_is_damaged_puts_a_new_one_in_its_place(
    office: Office, tmp_path: Path
) -> None:
    request, bus = await walked(office), await office.stage.bus("audit")
    async with IndexFeed(bus, tmp_path) as feed:
        await feed.catch_up()
    spoiled(tmp_path, "a damaged page")
    other = await walked(office)
    async with fed(bus, tmp_path, lambda feed: not feed.trouble and not feed.behind) as feed:
        assert {request, other} <= {row.request for row in listed(feed)}


def spoiled(folder: Path, harm: str) -> Path:
    """Damage the file in a folder; return the folder. Or return one that cannot be."""
    if harm == "no folder":
        (folder / "file").touch()
        return folder / "file" / "folder"
    path = next(folder.glob("*.sqlite3"))
    pages = path.read_bytes()
    path.write_bytes(pages[:4096] + b"\xff" * (len(pages) - 4096))
    return folder
