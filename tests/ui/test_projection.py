"""The list of requests: each filter against a plain look at the same rows, and what it is made anew by."""

import contextlib
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mesh.ui.projection import COSTS, Filter, Listed, Projection, words_of

WORDS = ("refund", "double", "charge", "parcel", "late", "Straße", "naïve")
COUNT = 400


def made(place: int, chance: random.Random) -> Listed:
    status = chance.choice(("open", "human", "completed", "failed"))
    cost = chance.choice((0, 5, 999_999, 1_000_000, 25_000_000, 4_000_000_000))
    agent, client = chance.choice("abc"), chance.choice(("app", "web"))
    tags = {f"status:{status}", f"agent:{agent}", f"client:{client}"}
    tags |= {"status:open"} if status == "human" else set()
    tags |= {f"cost:{power}" for power in COSTS if cost >= 10**power}
    text = " ".join(chance.sample(WORDS, 2))
    return Listed(
        request=f"{client}_{place:026d}",
        last=place + 1,
        status=status,
        holder="",
        client=client,
        frozen=False,
        opened=1_000 + place // 3,
        at=2_000 + place,
        events=2,
        type="request.opened",
        nano_dollars=cost,
        text=text,
        words=words_of(text),
        tags=" ".join(sorted(tags)),
    )


@pytest.fixture(scope="module")
def rows() -> list[Listed]:
    chance = random.Random(7)
    return [made(place, chance) for place in range(1, COUNT + 1)]


@pytest.fixture
def projection(tmp_path: Path, rows: list[Listed]) -> Iterator[Projection]:
    made = Projection(tmp_path / "page.sqlite3", "this log")
    made.put([(row.last - 1, row) for row in rows], COUNT + 1)
    yield made
    made.close()


Keeps = Callable[[Listed], bool]
FILTERS: dict[str, tuple[Filter, Keeps]] = {
    "all": (Filter(), lambda row: True),
    "status": (Filter(tags=("status:open",)), lambda row: row.status in ("open", "human")),
    "a short beginning of a word": (Filter(text="pa"), lambda row: False),
    "a rare tag and words": (
        Filter(text="late par", tags=("agent:a", "status:human", "client:web")),
        lambda row: (
            {"late", "parcel"} <= set(row.text.split())
            and "agent:a" in row.tags
            and row.status == "human"
            and row.client == "web"
        ),
    ),
    "two tags": (
        Filter(tags=("agent:a", "status:failed")),
        lambda row: "agent:a" in row.tags and row.status == "failed",
    ),
    "words": (Filter(text="refund late"), lambda row: {"refund", "late"} <= set(row.text.split())),
    "a word's beginning": (Filter(text="par"), lambda row: "parcel" in row.text),
    "a word in other letters": (Filter(text="STRASSE"), lambda row: "Straße" in row.text),
    "a word without its accent": (Filter(text="naive"), lambda row: "naïve" in row.text),
    "words and a tag": (
        Filter(text="refund", tags=("client:web",)),
        lambda row: "refund" in row.text and row.client == "web",
    ),
    "what SQLite could read": (Filter(text='" OR refund NOT ('), lambda row: False),
    "nothing to find": (Filter(text="—"), lambda row: False),
    "an id": (Filter(text=f"app_{0:023d}"), lambda row: row.client == "app"),
    "cost": (Filter(nano_dollars=2_000_000), lambda row: row.nano_dollars >= 2_000_000),
    "any cost": (Filter(nano_dollars=1), lambda row: row.nano_dollars >= 1),
    "age": (Filter(since=1_050, until=1_060), lambda row: 1_050 <= row.opened <= 1_060),
    "all together": (
        Filter(tags=("agent:b", "status:completed"), text="charge", nano_dollars=5, since=1_010),
        lambda row: (
            "agent:b" in row.tags
            and row.status == "completed"
            and "charge" in row.text
            and row.nano_dollars >= 5
            and row.opened >= 1_010
        ),
    ),
    "no such tag": (Filter(tags=("agent:nobody",)), lambda row: False),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_keeps_what_it_says_page_by_page(
    projection: Projection, rows: list[Listed], name: str
) -> None:
    wanted, keeps = FILTERS[name]
    found: list[str] = []
    before = None
    while part := projection.page(wanted, before=before, limit=7):
        found += [row.request for row in part]
        before = part[-1].id
    assert found == [row.request for row in reversed(rows) if keeps(row)]


def test_a_request_that_goes_on_keeps_its_place_and_changes_its_tags(
    projection: Projection, rows: list[Listed]
) -> None:
    import msgspec

    row = next(each for each in rows if each.status == "open")
    ended = msgspec.structs.replace(
        row, status="completed", last=COUNT + 2, tags=row.tags.replace("status:open", "status:completed")
    )
    projection.put([(COUNT + 2, ended)], COUNT + 2)
    (now,) = projection.page(Filter(text=row.request), limit=2)
    assert (now.id, now.status, projection.seq) == (row.last - 1, "completed", COUNT + 2)
    assert row.request not in {
        each.request for each in projection.page(Filter(tags=("status:open",)), limit=COUNT)
    }


def test_what_the_log_holds_no_longer_goes_out_of_every_filter(
    projection: Projection, rows: list[Listed]
) -> None:
    assert projection.forget(rows[100].last) == 100
    assert projection.forget(rows[100].last) == 0
    left = {row.request for row in projection.page(Filter(text="refund"), limit=COUNT)}
    assert left == {row.request for row in rows[100:] if "refund" in row.text}
    assert len(projection.page(Filter(tags=("status:open",)), limit=COUNT)) == sum(
        row.status in ("open", "human") for row in rows[100:]
    )


def test_names_are_listed_once(projection: Projection) -> None:
    assert projection.named("agent") == ["a", "b", "c"]
    assert projection.named("rule") == []


def test_it_goes_on_where_it_stopped(projection: Projection, tmp_path: Path) -> None:
    again = Projection(tmp_path / "page.sqlite3", "this log")
    assert again.seq == COUNT + 1
    again.close()


@pytest.mark.parametrize("damage", ["another log", "no database", "another form"])
def test_what_does_not_fit_is_made_anew(tmp_path: Path, rows: list[Listed], damage: str) -> None:
    path = tmp_path / "page.sqlite3"
    before = Projection(path, "this log")
    before.put([(1, rows[0])], 2)
    before.close()
    if damage == "no database":
        path.write_bytes(b"rubbish" * 1000)
    if damage == "another form":
        with sqlite3.connect(path) as other:
            other.execute("UPDATE place SET form = 99")
        other.close()
    after = Projection(path, "another log" if damage == "another log" else "this log")
    assert (after.seq, after.page(Filter(), limit=5)) == (0, [])
    assert path.stat().st_mode & 0o077 == 0
    after.close()


def test_closing_waits_for_the_thread_that_writes(projection: Projection) -> None:
    """When the feed is cancelled, its thread writes on; the file stays open until it has."""
    writes, may_end, closed = threading.Event(), threading.Event(), threading.Event()

    def rows() -> Iterator[tuple[int, Listed]]:
        writes.set()
        may_end.wait()
        yield 1_000_000, made(1_000_000, random.Random(1))

    def close() -> None:
        projection.close()
        closed.set()

    writer = threading.Thread(target=projection.put, args=(rows(), 7))
    closer = threading.Thread(target=close)
    writer.start()
    writes.wait()
    closer.start()
    early = closed.wait(0.2)
    may_end.set()
    writer.join()
    closer.join()
    assert not early
    with contextlib.closing(sqlite3.connect(projection._path)) as reopened:
        assert reopened.execute("SELECT seq FROM place").fetchone() == (7,)
