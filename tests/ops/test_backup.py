"""A mesh is made anew from a backup: every request goes on, and nothing that was done is done again."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.agent.definition import Agent
from mesh.bus.copying import WholeMessage
from mesh.bus.reader import every
from mesh.cli.exits import Exit
from mesh.client import Client
from mesh.errors import BackupUnusable, RestoreFailed
from mesh.ops.backup import MANIFEST, backup, line_of, message_of, read_manifest, whole_manifest
from mesh.ops.requeue import requeue
from mesh.ops.restore import alone, restore
from mesh.testing import EmbeddedBus
from protocol.wire import events, subjects
from tests.guard.stage import Stage, furnished_mesh, staged
from tests.ops.restoring import (
    Bank,
    acknowledged_unseen,
    bodies_of,
    empty_server,
    mesh_with_requests,
    submitted,
    write,
)
from tests.servers import PATIENCE_S, until
from tests.system.office import Office


async def test_every_request_of_a_restored_mesh_goes_on_and_nothing_is_done_twice(tmp_path: Path) -> None:
    bank = Bank()
    async with furnished_mesh(tmp_path / "first") as mesh, staged(mesh, guards=1) as stage:
        client, admin = await stage.client(), await stage.bus("admin")
        front = await stage.runtime(Agent("a", bank.front))
        back = await stage.runtime(Agent("b", bank.back))
        done = [await client.submit("done", to="a") for _ in range(3)]
        for request in done:
            await client.wait(request, timeout_s=PATIENCE_S)
        await stage.stop(back)
        handed = [await client.submit("handed on", to="a") for _ in range(3)]
        for request in handed:
            await stage.reaches(request, "handoff.admitted")
        await stage.stop(front)
        begun = [await client.submit("not begun", to="a") for _ in range(3)]
        for request in begun:
            await stage.reaches(request, "request.opened")
        made = await backup(admin, tmp_path / "backup")
        before = await bodies_of(admin)
        await stage.runtime(Agent("a", bank.front), "again")
        for request in begun:  # after the backup: nobody will know of it
            await stage.reaches(request, "handoff.admitted")
    assert made.through == before[-1][0]
    async with empty_server(mesh, tmp_path / "second") as second:
        async with second.connected_as("admin") as admin:
            restored = await restore(admin, tmp_path / "backup")
            assert await bodies_of(admin) == before
            assert (restored.open, restored.turns) == (6, 6)
        async with staged(second, guards=1) as stage:
            client = await stage.client()
            await stage.runtime(Agent("a", bank.front))
            await stage.runtime(Agent("b", bank.back))
            for request in (*done, *handed, *begun):
                event = (await client.wait(request, timeout_s=PATIENCE_S)).event
                assert isinstance(event, events.RequestCompleted)
            fresh = await client.submit("a new one", to="a")
            await client.wait(fresh, timeout_s=PATIENCE_S)
    assert len(bank.charges) == 10, "lost time is done again under the keys that it had"
    assert sorted(bank.charges.values()) == [1] * 7 + [2] * 3
    assert bank.receipts == dict.fromkeys((*done, *handed, *begun, fresh), 1)


# --- cut anywhere ---------------------------------------------------------------------------------

CUTS = int(os.environ.get("MESH_TEST_CUTS", "2"))
"""How often each of the next two tests takes a copy of a mesh that works; `make nightly` takes more."""
REQUESTS = 25


@contextlib.asynccontextmanager
async def at_work(mesh: EmbeddedBus, bank: Bank, requests: list[str]) -> AsyncIterator[Stage]:
    """Give a stage on which requests go through both agents, one after the other, until it is left."""

    async def submits(client: Client) -> None:
        while len(requests) < REQUESTS:
            requests.append(await client.submit("hello", to="a"))

    async with staged(mesh, guards=1) as stage:
        await stage.runtime(Agent("a", bank.front))
        await stage.runtime(Agent("b", bank.back))
        submitting = asyncio.create_task(submits(await stage.client()))
        try:
            yield stage
        finally:
            await submitting


async def goes_on(mesh: EmbeddedBus, bank: Bank, requests: Sequence[str]) -> None:
    """Let all requests come to their ends that the mesh knows."""
    async with staged(mesh, guards=1) as stage:
        admin, client = await stage.bus("admin"), await stage.client()
        known = {subjects.parse_evt(each.subject).request async for each in every(admin, "LOG", None)}
        await stage.runtime(Agent("a", bank.front))
        await stage.runtime(Agent("b", bank.back))
        for request in filter(known.__contains__, requests):
            event = (await client.wait(request, timeout_s=PATIENCE_S)).event
            assert isinstance(event, events.RequestCompleted)
        assert not (await requeue(admin)).turns


async def test_a_backup_of_a_mesh_at_work_comes_to_the_ends_of_all_its_requests(tmp_path: Path) -> None:
    for cut in range(CUTS):
        bank, requests = Bank(), list[str]()
        async with furnished_mesh(tmp_path / f"first{cut}") as mesh:
            async with at_work(mesh, bank, requests) as stage:
                await until(lambda: len(bank.charges) > cut * REQUESTS // CUTS)  # noqa: B023
                await backup(await stage.bus("admin"), tmp_path / f"backup{cut}")
            charged = len(bank.charges)
        async with empty_server(mesh, tmp_path / f"second{cut}") as second:
            async with second.connected_as("admin") as admin:
                await restore(admin, tmp_path / f"backup{cut}")
            await goes_on(second, bank, requests)
        assert len(bank.charges) == charged == REQUESTS, "each under the key that it had"


async def test_a_store_that_was_copied_while_it_ran_goes_on_after_a_requeue(tmp_path: Path) -> None:
    for cut in range(CUTS):
        bank, requests = Bank(), list[str]()
        async with furnished_mesh(tmp_path / f"first{cut}") as mesh, at_work(mesh, bank, requests):
            await until(lambda: len(bank.charges) > cut * REQUESTS // CUTS)  # noqa: B023
            await asyncio.to_thread(copy_hot, mesh.server.store, tmp_path / f"second{cut}" / "store")
        async with empty_server(mesh, tmp_path / f"second{cut}") as second:
            async with second.connected_as("admin") as admin:
                await requeue(admin)
            await goes_on(second, bank, requests)
        assert len(bank.charges) == REQUESTS, "each under the key that it had"


def copy_hot(source: Path, target: Path) -> None:
    """Copy a store file by file while its server writes it: consumers, which lie deeper, come last."""
    for path in sorted(source.rglob("*"), key=lambda path: len(path.parts)):
        with contextlib.suppress(FileNotFoundError):
            place = target / path.relative_to(source)
            if path.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            elif path.suffix != ".conf" and path.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)


# --- a second backup, and what is refused ---------------------------------------------------------


async def test_a_second_backup_adds_only_what_is_new(tmp_path: Path) -> None:
    async with mesh_with_requests(tmp_path / "first") as stage:
        admin, folder = await stage.bus("admin"), tmp_path / "backup"
        first = await backup(admin, folder)
        kept = {path: path.stat().st_mtime_ns for path in folder.rglob("*.jsonl")}
        await submitted(stage, 3)
        second = await backup(admin, folder)
        assert {path: path.stat().st_mtime_ns for path in kept} == kept
        assert second.through == first.through + 3
        assert [file.messages for file in second.streams["LOG"].files] == [2, 3]
        assert await backup(admin, folder) == second, "nothing is new"


def damaged(folder: Path, how: str) -> None:
    manifest = read_manifest(folder)
    path = folder / manifest.streams["LOG"].files[0].name
    if how == "altered":
        path.write_bytes(path.read_bytes().replace(b"hello", b"hallo", 1))
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif how == "missing":
        path.unlink()
    elif how == "half":
        write(folder, msgspec.structs.replace(manifest, whole=False))
    elif how == "newer":
        write(folder, msgspec.structs.replace(manifest, form=manifest.form + 1))
    elif how == "nonsense":
        (folder / MANIFEST).write_text("{")
    elif how == "no manifest":
        (folder / MANIFEST).unlink()


DAMAGE = {
    "altered": "was altered",
    "cut": "was altered",
    "missing": "not whole",
    "half": "half a backup",
    "newer": "form 2",
    "nonsense": "cannot be read",
    "no manifest": "holds no backup",
}


async def test_a_damaged_backup_is_refused_by_name_before_anything_is_written(tmp_path: Path) -> None:
    async with mesh_with_requests(tmp_path / "first") as stage:
        await backup(await stage.bus("admin"), tmp_path / "backup")
    async with empty_server(stage.mesh, tmp_path / "second") as second, second.connected_as("admin") as admin:
        for how, words in DAMAGE.items():
            shutil.copytree(tmp_path / "backup", tmp_path / how)
            damaged(tmp_path / how, how)
            with pytest.raises(BackupUnusable, match=words):
                await restore(admin, tmp_path / how)
        assert not (await admin.api("STREAM.NAMES"))["streams"]


async def test_a_backup_of_before_a_stream_was_added_is_restored_and_the_stream_begins_empty(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "backup"
    async with mesh_with_requests(tmp_path / "first") as stage:
        await backup(await stage.bus("admin"), folder)
        manifest = read_manifest(folder)
        older = {name: each for name, each in manifest.streams.items() if name != "SHADOW"}
        assert older != manifest.streams
        write(folder, msgspec.structs.replace(manifest, streams=older))
        async with empty_server(stage.mesh, tmp_path / "second") as bare, bare.connected_as("admin") as admin:
            await restore(admin, folder)
            assert (await admin.api("STREAM.INFO.SHADOW"))["state"]["messages"] == 0


async def test_a_bus_with_a_mesh_in_it_takes_no_restore(tmp_path: Path) -> None:
    async with mesh_with_requests(tmp_path / "first") as stage:
        admin = await stage.bus("admin")
        await backup(admin, tmp_path / "backup")
        before = await bodies_of(admin)
        with pytest.raises(RestoreFailed, match="not empty"):
            await restore(admin, tmp_path / "backup")
        assert await bodies_of(admin) == before


async def test_a_restore_beside_another_one_is_refused_and_takes_nothing_away(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with mesh_with_requests(tmp_path / "mesh") as stage:
        await backup(await stage.bus("admin"), folder)
        async with (
            empty_server(stage.mesh, tmp_path / "empty") as bare,
            bare.connected_as("admin") as first,
            bare.connected_as("admin") as second,
        ):
            async with alone(first):
                with pytest.raises(RestoreFailed, match="another restore into this bus is under way"):
                    await restore(second, folder)
                assert not (await second.api("STREAM.NAMES"))["streams"]
            async with alone(first):
                await first.close()  # as one that was killed
                await restore(second, folder)
            with pytest.raises(RestoreFailed, match="not empty"):
                await restore(second, folder)


async def test_a_folder_of_another_mesh_takes_no_backup(tmp_path: Path) -> None:
    async with mesh_with_requests(tmp_path / "first") as stage:
        await backup(await stage.bus("admin"), tmp_path / "backup")
    async with mesh_with_requests(tmp_path / "second") as stage:
        admin = await stage.bus("admin")
        with pytest.raises(BackupUnusable, match="made anew"):
            await backup(admin, tmp_path / "backup")
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "letters.txt").write_text("mine")
        with pytest.raises(BackupUnusable, match="not empty"):
            await backup(admin, tmp_path / "other")


async def test_two_backups_at_once_into_one_folder_are_one_and_a_refusal(tmp_path: Path) -> None:
    async with mesh_with_requests(tmp_path / "first") as stage:
        admin, folder = await stage.bus("admin"), tmp_path / "backup"
        both = await asyncio.gather(backup(admin, folder), backup(admin, folder), return_exceptions=True)
        (made,) = [each for each in both if not isinstance(each, BaseException)]
        (refused,) = [each for each in both if isinstance(each, BaseException)]
        assert isinstance(refused, BackupUnusable)
        assert whole_manifest(folder) == made


async def test_a_restore_that_was_interrupted_anywhere_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh_with_requests(tmp_path / "first", 5) as stage:
        admin = await stage.bus("admin")
        await backup(admin, tmp_path / "backup")
        before = await bodies_of(admin)
    async with empty_server(stage.mesh, tmp_path / "second") as second, second.connected_as("admin") as admin:
        for calls in (2, 8, 30, 80, 150):
            left = calls

            async def interrupted(*arguments: Any, of: Any = admin._ask) -> Any:
                nonlocal left
                left -= 1
                if not left:
                    raise asyncio.CancelledError
                return await of(*arguments)

            with monkeypatch.context() as patched:
                patched.setattr(admin, "_ask", interrupted)
                with pytest.raises(asyncio.CancelledError):
                    await restore(admin, tmp_path / "backup")
        restored = await restore(admin, tmp_path / "backup")
        assert (await bodies_of(admin), restored.turns) == (before, 5)
        with pytest.raises(RestoreFailed, match="not empty"):  # it came to its end
            await restore(admin, tmp_path / "backup")


async def test_entries_keep_the_sequences_by_which_events_name_them(tmp_path: Path) -> None:
    async with mesh_with_requests(tmp_path / "first") as stage:
        admin = await stage.bus("admin")
        for _ in range(3):  # the first two leave gaps
            await admin.publish_durable("mesh.conf.breaker.a", b"{}")
        await backup(admin, tmp_path / "backup")
        before = [(each.seq, each.subject, each.data) async for each in every(admin, "CONF", None)]
    async with empty_server(stage.mesh, tmp_path / "second") as second, second.connected_as("admin") as admin:
        await restore(admin, tmp_path / "backup")
        assert [(each.seq, each.subject, each.data) async for each in every(admin, "CONF", None)] == before


@given(
    seq=st.integers(1, 2**53),
    data=st.one_of(
        st.binary(),
        st.text().map(str.encode),
        st.dictionaries(st.text(), st.integers()).map(msgspec.json.encode),
    ),
    headers=st.dictionaries(st.sampled_from(["Mesh-Id", "traceparent"]), st.text("abc-", max_size=9)),
)
def test_a_line_gives_the_very_message_again(seq: int, data: bytes, headers: dict[str, str]) -> None:
    message = WholeMessage(seq, "mesh.evt.a.r", headers, data)
    line = line_of(message)
    assert line.count(b"\n") == 1
    assert message_of(line) == message


# --- at the terminal ------------------------------------------------------------------------------


async def test_an_admin_backs_up_restores_and_requeues_by_command(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with mesh_with_requests(tmp_path / "first") as stage:
        office = Office(stage, tmp_path)
        made = await office.mesh("backup", folder, who="admin")
        assert made.out.startswith(f"{folder} holds ")
        refused = await office.mesh("backup", tmp_path / "other", who="op")
        assert refused.status == Exit.USAGE
        assert "admin" in refused.err
        await acknowledged_unseen(await stage.bus("admin"), "a")
        doctor = await office.mesh("doctor", who="admin")
        assert "2 open turns have no message: mesh requeue" in doctor.out
        assert "2 open turns are delivered again" in (await office.mesh("requeue", who="admin")).out
        assert "no message" not in (await office.mesh("doctor", who="admin")).out
    async with empty_server(stage.mesh, tmp_path / "second") as second:
        office = Office(Stage(second), tmp_path)
        restored = await office.mesh("restore", folder, who="admin")
        assert "2 open requests, 2 turns delivered again" in restored.out
        again = await office.mesh("restore", folder, who="admin")
        assert again.status == Exit.FAILED
        assert "backup.restore_failed" in again.err
