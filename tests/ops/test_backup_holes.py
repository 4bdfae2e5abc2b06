"""A backup that is cut short, a replica that is behind, an agent that joins meanwhile: nothing is missing."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from mesh.bus.provision import provision
from mesh.bus.roles import GET
from mesh.bus.streams import steps_of
from mesh.errors import BackupUnusable
from mesh.ops.backup import backup, messages_in, read_manifest
from mesh.ops.restore import restore
from mesh.ops.roster import fleet_of
from protocol.wire.config import AgentEntry
from protocol.wire.ids import AgentName
from tests.ops.restoring import bodies_of, empty_server, mesh_with_requests, submitted


def stopping_at(stopped: str) -> Callable[[str, int, int], None]:
    """Return what is told of a backup's progress, and ends it within a stream."""

    def tell(stream: str, done: int, total: int) -> None:
        if stream == stopped:
            raise asyncio.CancelledError

    return tell


@pytest.mark.parametrize("stream", ["LOG", "CONF"])
async def test_a_second_backup_that_is_cut_short_leaves_the_first_and_is_gone_on_with(
    stream: str, tmp_path: Path
) -> None:
    folder = tmp_path / "backup"
    async with mesh_with_requests(tmp_path / "first") as stage:
        admin = await stage.bus("admin")
        made = await backup(admin, folder)
        first_night = await bodies_of(admin)
        kept = {path: path.read_bytes() for path in folder.rglob("*.jsonl")}
        await submitted(stage, 2)
        await admin.publish_durable("mesh.conf.breaker.a", b"{}")
        for _ in range(2):
            with pytest.raises(asyncio.CancelledError):
                await backup(admin, folder, stopping_at(stream))
            assert read_manifest(folder) == made
        async with empty_server(stage.mesh, tmp_path / "second") as bare, bare.connected_as("admin") as other:
            await restore(other, folder)
            assert await bodies_of(other) == first_night
        again = await backup(admin, folder)
        assert {path: path.read_bytes() for path in kept} == kept
        assert again.through == made.through + 2
        assert [file.messages for file in again.streams["LOG"].files] == [2, 2]
        async with empty_server(stage.mesh, tmp_path / "third") as bare, bare.connected_as("admin") as other:
            await restore(other, folder)
            assert await bodies_of(other) == await bodies_of(admin)


async def test_a_replica_that_is_behind_leaves_no_hole_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backup"
    async with mesh_with_requests(tmp_path / "first", 4) as stage:
        admin = await stage.bus("admin")
        had = [2, 0, 0]
        """Messages that the replicas have that answer the first reads of the log."""

        async def behind(subject: str, *rest: Any, of: Any = admin.collect, **more: Any) -> list[Incoming]:
            answers: list[Incoming] = await of(subject, *rest, **more)
            return answers[: had.pop(0)] if subject == f"{GET}LOG" and had else answers

        monkeypatch.setattr(admin, "collect", behind)
        made = await backup(admin, folder)
    assert not had
    copied = [message.seq for message in messages_in(folder, made.streams["LOG"])]
    assert copied == list(range(1, made.through + 1))
    assert made.head


def saying(admin: Bus, **state: int) -> Callable[..., Awaitable[dict[str, Any]]]:
    """Return a bus's `api` that lists the log with another state."""

    async def api(verb: str, *rest: Any, of: Any = admin.api, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await of(verb, *rest, **more)
        if verb == "STREAM.LIST":
            (log,) = [each for each in answer["streams"] if each["config"]["name"] == "LOG"]
            log["state"] |= state
        return answer

    return api


async def test_a_log_that_ends_before_its_last_event_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh_with_requests(tmp_path / "first") as stage:
        admin = await stage.bus("admin")
        await backup(admin, tmp_path / "whole")
        monkeypatch.setattr(admin, "api", saying(admin, last_seq=3))
        for folder in ("whole", "new"):
            with pytest.raises(BackupUnusable, match="LOG: the events from 3 to 3 are missing"):
                await backup(admin, tmp_path / folder)


async def test_a_log_that_has_aged_out_as_a_whole_is_copied_without_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh_with_requests(tmp_path / "first", 0) as stage:
        admin = await stage.bus("admin")
        monkeypatch.setattr(admin, "api", saying(admin, first_seq=8, last_seq=7))
        made = await backup(admin, tmp_path / "backup")
    assert (made.through, made.streams["LOG"].files) == (7, ())
    async with empty_server(stage.mesh, tmp_path / "second") as bare, bare.connected_as("admin") as admin:
        await restore(admin, tmp_path / "backup")
        assert (await admin.api("STREAM.INFO.LOG"))["state"]["last_seq"] == 7


async def joined(admin: Bus, agent: str) -> None:
    """Add an agent to the fleet, with all that belongs to it."""
    fleet, name = await fleet_of(admin), AgentName(agent)
    await provision(
        admin, msgspec.structs.replace(fleet, agents={**fleet.agents, name: AgentEntry(name=name)})
    )


async def test_an_agent_that_joins_during_a_backup_is_restored_with_its_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backup"
    async with mesh_with_requests(tmp_path / "first") as stage:
        admin, other = await stage.bus("admin"), await stage.bus("admin")
        late = [AgentName("late")]

        async def meanwhile(verb: str, *rest: Any, of: Any = admin.api, **more: Any) -> Any:
            if verb == "STREAM.INFO.CONF" and late:  # the log is copied, CONF is next
                await joined(other, late.pop())
            return await of(verb, *rest, **more)

        monkeypatch.setattr(admin, "api", meanwhile)
        made = await backup(admin, folder)
        assert not late
        assert made.streams["LOG"].through == made.through
    async with empty_server(stage.mesh, tmp_path / "second") as bare, bare.connected_as("admin") as admin:
        await restore(admin, folder)
        assert "late" in (await fleet_of(admin)).agents
        assert steps_of("late") in (await admin.api("STREAM.NAMES"))["streams"]
