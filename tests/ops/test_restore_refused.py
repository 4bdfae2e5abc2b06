"""What a backup and a restore refuse, each by name; `test_backup.py` has the rest."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh.agent import Agent
from mesh.bus.connection import Bus
from mesh.bus.streams import SCHEMA_KEY
from mesh.errors import BackupUnusable, RestoreFailed
from mesh.ops.backup import Manifest, backup, read_manifest
from mesh.ops.restore import restore
from protocol.wire.events import RequestCompleted
from tests.guard.stage import staged
from tests.ops.restoring import Bank, bodies_of, empty_server, mesh_with_requests, submitted, write
from tests.servers import PATIENCE_S


def with_config(folder: Path, stream: str, **changed: Any) -> Manifest:
    """Change the configuration of a stream in a backup; return the manifest as it was."""
    manifest = read_manifest(folder)
    before = manifest.streams[stream]
    altered = msgspec.structs.replace(before, config={**before.config, **changed})
    write(folder, msgspec.structs.replace(manifest, streams={**manifest.streams, stream: altered}))
    return manifest


async def test_another_meshs_folder_takes_no_backup(tmp_path: Path) -> None:
    async with mesh_with_requests(tmp_path / "mesh") as stage:
        admin, folder = await stage.bus("admin"), tmp_path / "backup"
        made = await backup(admin, folder)
        write(folder, msgspec.structs.replace(made, mesh="bakery"))
        with pytest.raises(BackupUnusable, match=f"of the mesh bakery, and this one is {made.mesh}"):
            await backup(admin, folder)
        write(folder, msgspec.structs.replace(made, head="0" * 64))
        with pytest.raises(BackupUnusable, match="this is another log"):
            await backup(admin, folder)


async def test_a_backup_of_a_newer_layout_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with mesh_with_requests(tmp_path / "first") as stage:
        await backup(await stage.bus("admin"), folder)
    with_config(folder, "LOG", metadata={SCHEMA_KEY: "99"})
    async with empty_server(stage.mesh, tmp_path / "second") as second, second.connected_as("admin") as admin:
        with pytest.raises(BackupUnusable, match=r"schema 99.*newer version"):
            await restore(admin, folder)
        assert not (await admin.api("STREAM.NAMES"))["streams"]


def intruding(bus: Bus) -> Callable[[str, int, int], None]:
    """Return what is told of a restore's progress, and writes into the log meanwhile."""

    def tell(stream: str, done: int, total: int) -> None:
        if stream == "LOG" and done == 1:
            bus.send("mesh.evt._.intruder", b"{}")

    return tell


async def test_a_target_into_which_somebody_else_writes_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with mesh_with_requests(tmp_path / "first", 4) as stage:
        await backup(await stage.bus("admin"), folder)
    async with empty_server(stage.mesh, tmp_path / "second") as second, second.connected_as("admin") as admin:
        with pytest.raises(RestoreFailed, match=r"LOG: message .* was stored as .*: somebody else writes"):
            await restore(admin, folder, progress=intruding(admin))
        await restore(admin, folder)


TOO_SMALL = {
    "STEPS-a": ({"max_bytes": 1 << 60}, r"no room for this backup of \d+ bytes.*max_file_store"),
    "LOG": (
        {"max_bytes": 1 << 10},
        r"LOG has no room .*its own limit .*raise max_bytes .*streams\.LOG\.config",
    ),
}
"""More than any server may promise; less than what is stored. Each with what is said of it."""


@pytest.mark.parametrize("stream", TOO_SMALL)
async def test_a_server_or_a_stream_without_room_is_named_and_the_same_restore_goes_on_with_more_of_it(
    stream: str, tmp_path: Path
) -> None:
    folder = tmp_path / "backup"
    async with mesh_with_requests(tmp_path / "first", 4) as stage:
        admin = await stage.bus("admin")
        await backup(admin, folder)
        before = await bodies_of(admin)
    small, said = TOO_SMALL[stream]
    as_it_was = with_config(folder, stream, **small)
    async with empty_server(stage.mesh, tmp_path / "second") as second, second.connected_as("admin") as admin:
        with pytest.raises(RestoreFailed, match=said):
            await restore(admin, folder)
        write(folder, as_it_was)
        await restore(admin, folder)
        assert await bodies_of(admin) == before


async def test_a_guard_beside_a_restore_without_room_believes_nothing_of_it_until_it_had_room(
    tmp_path: Path,
) -> None:
    folder, bank = tmp_path / "backup", Bank()
    async with mesh_with_requests(tmp_path / "first", 0) as stage:
        requests = await submitted(stage, 4)
        admin = await stage.bus("admin")
        await backup(admin, folder)
        before = await bodies_of(admin)
    as_it_was = with_config(folder, "LOG", max_bytes=2 << 10)
    async with contextlib.AsyncExitStack() as stack:
        second = await stack.enter_async_context(empty_server(stage.mesh, tmp_path / "second"))
        admin = await stack.enter_async_context(second.connected_as("admin"))
        with pytest.raises(RestoreFailed, match="LOG has no room"):
            await restore(admin, folder)
        half = await bodies_of(admin)
        assert 0 < len(half) < len(before)
        assert half == before[: len(half)]
        beside = await stack.enter_async_context(staged(second))
        guard = await beside.guard("early")
        await asyncio.sleep(1)  # what it would do, it would have begun by now
        assert not guard.ready
        assert await bodies_of(admin) == half
        write(folder, as_it_was)
        await restore(admin, folder)
        await beside.ready(guard)
        for name, behave in (("a", bank.front), ("b", bank.back)):
            await beside.runtime(Agent(name, behave))
        client = await beside.client()
        for request in requests:
            outcome = await client.wait(request, timeout_s=PATIENCE_S)
            assert isinstance(outcome.event, RequestCompleted)
        assert (await bodies_of(admin))[: len(before)] == before
    assert bank.receipts == dict.fromkeys(requests, 1)


async def test_a_backup_that_is_under_way_is_half_of_one(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with mesh_with_requests(tmp_path / "first", 4) as stage:
        admin = await stage.bus("admin")

        def stop(stream: str, done: int, total: int) -> None:
            raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await backup(admin, folder, stop)
        async with empty_server(stage.mesh, tmp_path / "second") as bare, bare.connected_as("admin") as other:
            with pytest.raises(BackupUnusable, match="half a backup: run mesh backup once more"):
                await restore(other, folder)
            await backup(admin, folder)
            await restore(other, folder)
            assert await bodies_of(other) == await bodies_of(admin)
