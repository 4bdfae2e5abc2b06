"""The list of requests: each filter against a plain look at the same rows, and what it is made anew by."""

import contextlib
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs

from mesh.ops.index import Overtaken, RequestIndex
from mesh.ops.rows import COSTS, EdgeCount, IndexRow, Listed, words_of
from mesh.ops.where import Filter, matches

WORDS = ("refund", "double", "charge", "parcel", "late", "Straße", "naïve")
COUNT = 400


def made(place: int, chance: random.Random) -> IndexRow:
    status = chance.choice(("open", "human", "completed", "failed"))
    cost = chance.choice((0, 5, 999_999, 1_000_000, 25_000_000, 4_000_000_000))
    agent, client = chance.choice("abc"), chance.choice(("app", "web"))
    tags = {f"status:{status}", f"agent:{agent}", f"client:{client}"}
    tags |= {"status:open"} if status == "human" else set()
    tags |= {f"cost:{power}" for power in COSTS if cost >= 10**power}
    text = " ".join(chance.sample(WORDS, 2))
    listed = Listed(
        request=f"{client}_{place:026d}",
        last=place + 1,
        status=status,
        holder="",
        client=client,
        opened=1_000 + place // 3,
        at=2_000 + place,
        events=2,
        type="request.opened",
        nano_dollars=cost,
        text=text,
    )
    return IndexRow(listed, frozenset(tags), words_of(text))


@pytest.fixture(scope="module")
def rows() -> list[IndexRow]:
    chance = random.Random(7)
    return [made(place, chance) for place in range(1, COUNT + 1)]


@pytest.fixture
def index(tmp_path: Path, rows: list[IndexRow]) -> Iterator[RequestIndex]:
    made = RequestIndex(tmp_path / "index.sqlite3", "this log")
    made.put([(row.listed.last - 1, row) for row in rows], 0, COUNT + 1)
    yield made
    made.close()


Keeps = Callable[[IndexRow], bool]
FILTERS: dict[str, tuple[Filter, Keeps]] = {
    "all": (Filter(), lambda row: True),
    "status": (Filter(tags=("status:open",)), lambda row: row.listed.status in ("open", "human")),
    "a short beginning of a word": (Filter(text="pa"), lambda row: False),
    "a rare tag and words": (
        Filter(text="late par", tags=("agent:a", "status:human", "client:web")),
        lambda row: (
            {"late", "parcel"} <= set(row.listed.text.split())
            and "agent:a" in row.tags
            and row.listed.status == "human"
            and row.listed.client == "web"
        ),
    ),
    "two tags": (
        Filter(tags=("agent:a", "status:failed")),
        lambda row: "agent:a" in row.tags and row.listed.status == "failed",
    ),
    "words": (Filter(text="refund late"), lambda row: {"refund", "late"} <= set(row.listed.text.split())),
    "a word's beginning": (Filter(text="par"), lambda row: "parcel" in row.listed.text),
    "a word in other letters": (Filter(text="STRASSE"), lambda row: "Straße" in row.listed.text),
    "a word without its accent": (Filter(text="naive"), lambda row: "naïve" in row.listed.text),
    "words and a tag": (
        Filter(text="refund", tags=("client:web",)),
        lambda row: "refund" in row.listed.text and row.listed.client == "web",
    ),
    "what SQLite could read": (Filter(text='" OR refund NOT ('), lambda row: False),
    "nothing to find": (Filter(text="—"), lambda row: False),
    "an id": (Filter(text=f"app_{0:023d}"), lambda row: row.listed.client == "app"),
    "cost": (Filter(nano_dollars=2_000_000), lambda row: row.listed.nano_dollars >= 2_000_000),
    "any cost": (Filter(nano_dollars=1), lambda row: row.listed.nano_dollars >= 1),
    "age": (Filter(since=1_050, until=1_060), lambda row: 1_050 <= row.listed.opened <= 1_060),
    "all together": (
        Filter(tags=("agent:b", "status:completed"), text="charge", nano_dollars=5, since=1_010),
        lambda row: (
            "agent:b" in row.tags
            and row.listed.status == "completed"
            and "charge" in row.listed.text
            and row.listed.nano_dollars >= 5
            and row.listed.opened >= 1_010
        ),
    ),
    "no such tag": (Filter(tags=("agent:nobody",)), lambda row: False),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_keeps_what_it_says_page_by_page(
    index: RequestIndex, rows: list[IndexRow], name: str
) -> None:
    wanted, keeps = FILTERS[name]
    found: list[str] = []
    before = None
    while part := index.page(wanted, before=before, limit=7):
        found += [row.request for row in part]
        before = part[-1].id
    kept = [row.listed.request for row in reversed(rows) if keeps(row)]
    assert found == kept
    assert [row.request for row in index.page(wanted, limit=COUNT, by_change=True)] == kept


@pytest.mark.parametrize("name", FILTERS)
def test_one_request_is_wanted_without_an_index_where_the_index_finds_it(
    rows: list[IndexRow], name: str
) -> None:
    wanted, keeps = FILTERS[name]
    assert [row for row in rows if matches(wanted, row)] == [row for row in rows if keeps(row)]


def test_a_request_that_goes_on_keeps_its_place_and_changes_its_tags(
    index: RequestIndex, rows: list[IndexRow]
) -> None:
    row = next(each for each in rows if each.listed.status == "open")
    tags = row.tags - {"status:open"} | {"status:completed"}
    ended = IndexRow(structs.replace(row.listed, status="completed", last=COUNT + 2), tags, row.words)
    index.put([(COUNT + 2, ended)], COUNT + 1, COUNT + 2)
    (now,) = index.page(Filter(text=row.listed.request), limit=2)
    assert (now.id, now.status, index.seq) == (row.listed.last - 1, "completed", COUNT + 2)
    is_open = Filter(tags=("status:open",))
    assert row.listed.request not in {each.request for each in index.page(is_open, limit=COUNT)}
    assert index.page(Filter(), limit=1, by_change=True) == [now]


def test_what_the_log_holds_no_longer_goes_out_of_every_filter(
    index: RequestIndex, rows: list[IndexRow]
) -> None:
    assert index.forget(rows[100].listed.last) == 100
    assert index.forget(rows[100].listed.last) == 0
    left = {row.request for row in index.page(Filter(text="refund"), limit=COUNT)}
    assert left == {row.listed.request for row in rows[100:] if "refund" in row.listed.text}
    assert len(index.page(Filter(tags=("status:open",)), limit=COUNT)) == sum(
        row.listed.status in ("open", "human") for row in rows[100:]
    )


def test_a_writer_that_lags_changes_nothing_and_one_that_is_ahead_is_stopped(
    index: RequestIndex, rows: list[IndexRow]
) -> None:
    edge = EdgeCount("a", "b", 1, 0)
    index.put([], COUNT + 1, COUNT + 2, [(COUNT + 2, edge)])
    before = index.page(Filter(), limit=COUNT)
    old = IndexRow(structs.replace(rows[7].listed, status="open", last=3), frozenset({"status:open"}), "")
    index.put([(1, old)], 0, 4, [(3, edge), (COUNT + 2, edge)])
    assert (index.page(Filter(), limit=COUNT), index.edges(), index.seq) == (before, [edge], COUNT + 2)
    with pytest.raises(Overtaken):
        index.put([], COUNT + 3, COUNT + 4)
    index.remake()
    with pytest.raises(Overtaken):
        index.put([], COUNT + 2, COUNT + 3)
    assert (index.seq, index.page(Filter(), limit=1)) == (0, [])


def test_a_file_that_another_made_for_another_log_is_not_written(index: RequestIndex, tmp_path: Path) -> None:
    with contextlib.closing(RequestIndex(tmp_path / "index.sqlite3", "another log")) as other:
        with pytest.raises(Overtaken):
            index.put([], 0, 5)
        assert other.seq == 0


def test_names_are_listed_once(index: RequestIndex) -> None:
    assert index.named("agent") == ["a", "b", "c"]
    assert index.named("rule") == []


def test_it_goes_on_where_it_stopped(index: RequestIndex, tmp_path: Path) -> None:
    again = RequestIndex(tmp_path / "index.sqlite3", "this log")
    assert again.seq == COUNT + 1
    again.close()


@pytest.mark.parametrize("damage", ["another log", "no database", "another form"])
def test_what_does_not_fit_is_made_anew(tmp_path: Path, rows: list[IndexRow], damage: str) -> None:
    path = tmp_path / "index.sqlite3"
    before = RequestIndex(path, "this log")
    before.put([(1, rows[0])], 0, 2)
    before.close()
    if damage == "no database":
        path.write_bytes(b"rubbish" * 1000)
    if damage == "another form":
        with sqlite3.connect(path) as other:
            other.execute("UPDATE place SET form = 99")
        other.close()
    after = RequestIndex(path, "another log" if damage == "another log" else "this log")
    assert (after.seq, after.page(Filter(), limit=5)) == (0, [])
    assert path.stat().st_mode & 0o077 == 0
    after.close()


def test_closing_waits_for_the_thread_that_writes(index: RequestIndex) -> None:
    """When the feed is cancelled, its thread writes on; the file stays open until it has."""
    writes, may_end, closed = threading.Event(), threading.Event(), threading.Event()

    def rows() -> Iterator[tuple[int, IndexRow]]:
        writes.set()
        may_end.wait()
        yield 1_000_000, made(1_000_000, random.Random(1))

    def close() -> None:
        index.close()
        closed.set()

    writer = threading.Thread(target=index.put, args=(rows(), COUNT, COUNT + 7))
    closer = threading.Thread(target=close)
    writer.start()
    writes.wait()
    closer.start()
    early = closed.wait(0.2)
    may_end.set()
    writer.join()
    closer.join()
    assert not early
    with contextlib.closing(sqlite3.connect(index._path)) as reopened:
        assert reopened.execute("SELECT seq FROM place").fetchone() == (COUNT + 7,)
