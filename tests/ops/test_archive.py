"""An archive: what ended is read from it as from the log, each request once, and nothing that was altered."""

import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import zstandard

from mesh.artifacts.store import INCOMING
from mesh.bus.connection import Bus
from mesh.cli.exits import Exit
from mesh.errors import ArchiveUnusable, NotFound, StoreUnusable, UsageWrong
from mesh.ops.archive import INDEX, Archived, ArchiveFiles, ArchiveIndex, archive, losses
from mesh.ops.archived import export
from mesh.replay.export import load
from mesh.testing import EmbeddedBus
from protocol.wire.codec import body_digest
from protocol.wire.event import VERSION
from protocol.wire.ids import RequestId
from protocol.wire.moves import Complete
from protocol.wire.subjects import evt
from tests.artifacts.conftest import bucket, endpoint, where
from tests.guard.stage import Stage, furnished_mesh
from tests.integration.filled_log import forgetful
from tests.servers import fresh
from tests.system.office import Office

__all__ = ["bucket", "endpoint", "where"]

DAY_S = 86_400
NOW_S = 1_900_000_000 // DAY_S * DAY_S
"""When the forged events of `filled` end, at midnight."""


def url_of(where: str) -> str:
    return where if "://" in where else Path(where).as_uri()


async def put(bus: Bus, request: str, n: int, at_s: float, *, end: bool) -> None:
    kind = "request.completed" if end else "request.opened"
    body = {"type": kind, "v": VERSION, "request": request, "n": n, "at": int(at_s * 1e6), "x": "x" * 1000}
    await bus.publish_durable(evt("a", request), msgspec.json.encode(body))


async def put_days(bus: Bus, days: range, each: int = 3) -> list[RequestId]:
    """Put requests of two events, so many a day, of which each ends on the day after it began."""
    before, made = list[RequestId](), list[RequestId]()
    for day in days:
        at_s = NOW_S + day * DAY_S
        opened = [fresh() for _ in range(each)]
        for request in opened:
            await put(bus, request, 0, at_s, end=False)
        for request in before:
            await put(bus, request, 1, at_s + 1, end=True)
        made += before
        before = opened
    return made


async def archived(bus: Bus, url: str, until_s: float, file_bytes: int = 1 << 20) -> Archived:
    """Archive what ended before a time."""
    return await archive(bus, url, older_than_s=time.time() - until_s, file_bytes=file_bytes)


async def held(url: str, folder: Path) -> Counter[str]:
    """Return every request of an archive, and how often it is there."""
    index = await ArchiveFiles(url).index()
    assert index is not None
    found = Counter[str]()
    for day in dict.fromkeys(file.day for file in index.files):
        into = folder / f"{day}-{len(index.files)}"
        into.mkdir(exist_ok=True)
        found.update(load(await export(f"{url}/{day}", into)).keys())
        for each in into.iterdir():
            each.unlink()
    assert index.requests == found.total()
    return found


# --- from a mesh that works ------------------------------------------------------------------------


async def ended(stage: Stage) -> str:
    request = await (await stage.client()).submit("hello")
    a = await stage.actor("a")
    await a.propose(request, await a.work(request), Complete(answer="done"))
    await stage.reaches(request, "request.completed")
    return request


async def test_what_ended_is_read_from_the_archive_as_from_the_log(
    stage: Stage, office: Office, where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = url_of(where)
    first, second = await ended(stage), await ended(stage)
    open_ = await (await stage.client()).submit("hello")
    await stage.reaches(open_, "request.opened")
    to = ("log", "archive", "--to", url, "--older-than", "1h", "--json")
    young = (await office.mesh(*to)).json
    assert (young["files"], young["requests"]) == (0, 0)
    monkeypatch.setattr("mesh.ops.archive.time", SimpleNamespace(time=lambda: time.time() + 7200))
    made = (await office.mesh(*to)).json
    assert (made["left_out"], made["gone"]) == ([], 0)
    assert made["requests"] >= 2
    index = await ArchiveFiles(url).index()
    assert index is not None
    for request in (first, second):
        file = await export(f"{url}/{request}", tmp_path)
        assert load(file) == {request: await stage.bodies(request)}
        for command in (("request", "show"), ("why",), ("replay",), ("log", "verify")):
            told = await office.mesh(*command, f"{url}/{request}", "--json")
            assert told.status == Exit.DONE, told
        shown = (await office.mesh("request", "show", f"{url}/{request}", "--json")).json
        assert shown == (await office.mesh("request", "show", request, "--json")).json
    with pytest.raises(NotFound, match=open_):
        await export(f"{url}/{open_}", tmp_path)
    day = await office.mesh("replay", f"{url}/{index.files[-1].day}")
    assert day.status == Exit.DONE, day
    again = (await office.mesh(*to)).json
    assert (again["requests"], again["files"]) == (0, 0)
    third = await ended(stage)
    added = (await office.mesh(*to)).json
    assert (added["requests"], added["files"]) == (1, 1)
    assert load(await export(f"{url}/{third}", tmp_path)) == {third: await stage.bodies(third)}


# --- days, runs, and what the log lost -------------------------------------------------------------


async def test_each_request_lies_in_the_day_of_its_end_and_each_run_adds_what_is_new(tmp_path: Path) -> None:
    url = (tmp_path / "archive").as_uri()
    async with furnished_mesh(tmp_path / "mesh") as mesh, mesh.connected_as("admin") as admin:
        requests = await put_days(admin, range(6))
        async with mesh.connected_as("audit") as bus:
            first = await archived(bus, url, NOW_S + 3 * DAY_S)
            assert [file.day for file in first.index.files] == ["2030-03-18", "2030-03-19"]
            assert (first.requests, first.events) == (6, 12)
            second = await archived(bus, url, NOW_S + 10 * DAY_S)
            assert (second.files, second.requests) == (3, 9)
            assert second.index.files[:2] == first.index.files
            assert (await archived(bus, url, NOW_S + 10 * DAY_S)).index == second.index
    assert await held(url, tmp_path) == Counter(requests)
    one = load(await export(f"{url}/{requests[4]}", tmp_path))[requests[4]]
    assert [json.loads(body)["n"] for body in one] == [0, 1]
    for folder, mode in ((tmp_path / "archive", 0o700),):
        assert folder.stat().st_mode & 0o777 == mode


async def test_a_day_has_several_files_and_a_killed_run_goes_on_where_the_index_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (tmp_path / "archive").as_uri()
    write, written = ArchiveFiles.write_index, list[ArchiveIndex]()

    async def dies(place: ArchiveFiles, index: ArchiveIndex) -> None:
        if len(written) == 3:
            raise StoreUnusable("the disk is full")
        written.append(index)
        await write(place, index)

    async with furnished_mesh(tmp_path / "mesh") as mesh, mesh.connected_as("admin") as admin:
        requests = await put_days(admin, range(4))
        with monkeypatch.context() as patched:
            patched.setattr(ArchiveFiles, "write_index", dies)
            with pytest.raises(StoreUnusable):
                await archived(admin, url, NOW_S + 10 * DAY_S, file_bytes=1)
        assert sum((await held(url, tmp_path)).values()) == 3
        made = await archived(admin, url, NOW_S + 10 * DAY_S, file_bytes=1)
    assert made.requests == len(requests) - 3
    assert len(made.index.files) == len(requests)
    assert await held(url, tmp_path) == Counter(requests)
    assert not list((tmp_path / "archive" / INCOMING).iterdir())


async def test_a_request_without_its_beginning_is_left_out_and_a_gap_is_counted(tmp_path: Path) -> None:
    url = (tmp_path / "archive").as_uri()
    async with furnished_mesh(tmp_path / "mesh") as mesh, mesh.connected_as("admin") as admin:
        await forgetful(admin)
        requests = await put_days(admin, range(3), each=2)
        await archived(admin, url, NOW_S + 1.5 * DAY_S)
        index = await ArchiveFiles(url).index()
        assert index is not None
        assert index.requests == 2
        await put_days(admin, range(3, 5), each=2)
        left = index.through + 4  # two events are gone unseen, then a request's second one is the first
        await admin.api("STREAM.PURGE.LOG", {"seq": left})
        made = await archived(admin, url, NOW_S + 10 * DAY_S)
    assert made.gone == 3
    assert set(made.left_out) <= set(requests[2:])
    assert len(made.left_out) == 1
    assert made.requests == 2


async def told(bus: Bus, url: str) -> list[tuple[str, str]]:
    return [each async for each in losses(bus, url)]


async def test_doctor_tells_when_the_log_loses_events_next_and_whether_they_are_archived_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, later_s, clock = (tmp_path / "archive").as_uri(), [0.0], time.time
    monkeypatch.setattr("mesh.ops.archive.time", SimpleNamespace(time=lambda: clock() + later_s[0]))
    async with furnished_mesh(tmp_path / "mesh") as mesh, mesh.connected_as("admin") as admin:
        assert await told(admin, url) == []  # there is nothing to lose
        await forgetful(admin)
        await put_days(admin, range(3), each=2)
        assert await told(admin, "") == [("ok", "next loss in 30 d, and no archive is named ([log] archive)")]
        assert await told(admin, url) == [("ok", "next loss in 30 d, nothing is archived")]
        later_s[0] = 28.0 * DAY_S
        [(state, text)] = await told(admin, url)
        assert (state, text) == (
            "found",
            "next loss in 2 d, nothing is archived: mesh log archive, or it loses what is in no archive",
        )
        later_s[0] = 29.5 * DAY_S
        await archive(admin, url, older_than_s=time.time() + later_s[0] - NOW_S - 10 * DAY_S)
        [(state, text)] = await told(admin, url)
        assert state == "ok"
        assert re.fullmatch(r"next loss in 1[12]\.\d h, archived until 2030-03-19.*", text), text
        index = await ArchiveFiles(url).index()
        assert index is not None
        await put_days(admin, range(3, 5), each=2)
        await admin.api("STREAM.PURGE.LOG", {"seq": index.through + 3})
        [(state, text)] = await told(admin, url)
        assert (state, text.rpartition(": ")[2]) == ("found", "2 events left the log since then")
        await ArchiveFiles(url).write_index(msgspec.structs.replace(index, mesh="another"))
        [(state, text)] = await told(admin, url)
        assert (state, "an archive of 'another'" in text) == ("found", True)
        (tmp_path / "archive" / INDEX).write_bytes(b"[]")
        [(state, text)] = await told(admin, url)
        assert (state, "archive.json is damaged" in text) == ("found", True)
        monkeypatch.setattr(ArchiveFiles, "index", _away)
        [(state, text)] = await told(admin, url)
        assert (state, "cannot be read: the store is away" in text) == ("unknown", True)


async def _away(_: ArchiveFiles) -> None:
    raise StoreUnusable("the store is away")


async def test_the_fleet_file_may_name_the_archive(stage: Stage, office: Office, tmp_path: Path) -> None:
    nameless = await office.mesh("log", "archive")
    assert nameless.status == Exit.USAGE
    assert "`archive` under [log] in ./mesh.toml" in nameless.err
    await ended(stage)
    url = (tmp_path / "kept").as_uri()
    (tmp_path / "mesh.toml").write_text(
        f'name = "stage"\nentry = "a"\n[agents.a]\n[log]\narchive = "{url}"\n'
    )
    made = await office.mesh("log", "archive", "--older-than", "1h", "--json")
    assert (made.status, made.json["url"]) == (Exit.DONE, url), made
    found = (await office.mesh("doctor", "--json")).json
    [text] = [each["text"] for each in found if each["check"] == "archive"]
    assert text.startswith("next loss in 30 d, "), text
    assert "no archive is named" not in text


# --- damaged, half and foreign ----------------------------------------------------------------------


@pytest.fixture
async def whole(tmp_path: Path) -> tuple[str, Path, str]:
    """Give an archive's URL and folder, and a request in it."""
    folder = tmp_path / "archive"
    async with furnished_mesh(tmp_path / "mesh") as mesh, mesh.connected_as("admin") as admin:
        requests = await put_days(admin, range(3))
        await archived(admin, folder.as_uri(), NOW_S + 10 * DAY_S)
    return folder.as_uri(), folder, requests[0]


async def test_a_damaged_or_half_archive_is_refused_by_name(
    whole: tuple[str, Path, str], tmp_path: Path
) -> None:
    url, folder, request = whole
    index = await ArchiveFiles(url).index()
    assert index is not None
    day = index.files[0]
    for name in (day.name, day.heads):
        file = folder / name
        bytes_ = file.read_bytes()
        for spoilt in (bytes_[:-1], bytes_[:40] + bytes([bytes_[40] ^ 1]) + bytes_[41:]):
            file.write_bytes(spoilt)
            with pytest.raises(ArchiveUnusable, match=f"damaged: {name}"):
                await export(f"{url}/{request}", tmp_path)
        file.unlink()
        with pytest.raises(ArchiveUnusable, match=f"{name} is missing"):
            await export(f"{url}/{request}", tmp_path)
        file.write_bytes(bytes_)
    assert len(load(await export(f"{url}/{request}", tmp_path))[request]) == 2
    stored = (folder / INDEX).read_bytes()
    for spoilt, named in (
        (stored[:-9], "damaged"),
        (b"[]", "damaged"),
        (b"\xff", "damaged"),
        (b'{"form": 1}', "damaged"),
        (stored.replace(b'"form": 1', b'"form": 2'), "the form 2"),
    ):
        (folder / INDEX).write_bytes(spoilt)
        with pytest.raises(ArchiveUnusable, match=named):
            await export(f"{url}/{request}", tmp_path)
    (folder / INDEX).unlink()
    with pytest.raises(NotFound, match="no archive"):
        await export(f"{url}/{request}", tmp_path)


async def test_an_archive_of_another_mesh_or_log_is_refused(
    whole: tuple[str, Path, str], tmp_path: Path
) -> None:
    url, _, _ = whole
    before = await ArchiveFiles(url).index()
    assert before is not None
    async with furnished_mesh(tmp_path / "other") as mesh, mesh.connected_as("admin") as admin:
        with pytest.raises(ArchiveUnusable, match="another log"):
            await archived(admin, url, NOW_S + 10 * DAY_S)
        await put_days(admin, range(4))
        with pytest.raises(ArchiveUnusable, match="another log"):
            await archived(admin, url, NOW_S + 10 * DAY_S)
        await ArchiveFiles(url).write_index(msgspec.structs.replace(before, mesh="another"))
        with pytest.raises(ArchiveUnusable, match="an archive of 'another'"):
            await archived(admin, url, NOW_S + 10 * DAY_S)


async def test_the_index_names_digests_and_heads_of_chains(
    whole: tuple[str, Path, str], tmp_path: Path
) -> None:
    url, folder, _ = whole
    index = await ArchiveFiles(url).index()
    assert index is not None
    for file in index.files:
        assert body_digest((folder / file.name).read_bytes()) == file.sha256
        assert body_digest((folder / file.heads).read_bytes()) == file.heads_sha256
        unpacked = zstandard.ZstdDecompressor().decompressobj().decompress((folder / file.heads).read_bytes())
        heads = {head["request"]: head["head"] for head in map(json.loads, unpacked.splitlines())}
        events = load(await export(f"{url}/{file.day}", tmp_path))
        assert heads == {request: body_digest(bodies[-1]) for request, bodies in events.items()}


# --- what cannot be asked for -----------------------------------------------------------------------


async def test_what_is_no_archive_and_what_names_nothing_in_it_is_wrong_usage(tmp_path: Path) -> None:
    for url in ("archive", "ftp://a/b", "file://a", "https://a/b"):
        with pytest.raises(UsageWrong, match="no URL of an archive"):
            ArchiveFiles(url)
    with pytest.raises(UsageWrong, match="neither a request nor a day"):
        await export(tmp_path.as_uri(), tmp_path)


async def test_without_the_extra_the_error_names_it(
    furnished: EmbeddedBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    async with furnished.connected_as("admin") as admin:
        with pytest.raises(UsageWrong, match=r"handoff-mesh\[artifacts\]"):
            await archived(admin, tmp_path.as_uri(), NOW_S)
    with pytest.raises(UsageWrong, match=r"handoff-mesh\[artifacts\]"):
        await export(f"{tmp_path.as_uri()}/{fresh()}", tmp_path)
