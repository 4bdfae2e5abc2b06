"""What agents did after a backup is lost with the bus: nothing of it is silently done again."""

import hashlib
import math
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from mesh.agent.definition import Agent
from mesh.agent.tools import tool
from mesh.agent.turn import Turn
from mesh.bus.connection import Bus
from mesh.bus.reader import get
from mesh.bus.streams import steps_of
from mesh.cli.exits import Exit
from mesh.ops.backup import backup, read_manifest
from mesh.ops.log import trim_steps
from mesh.ops.restore import restore
from protocol.wire import events, subjects
from protocol.wire.commands import ReplyToAsk, Settle
from protocol.wire.ids import request_id
from protocol.wire.moves import Move
from protocol.wire.records import LostTime
from tests.guard.stage import Stage, furnished_mesh, staged
from tests.ops.restoring import empty_server, mesh_with_requests, submitted, write
from tests.servers import PATIENCE_S
from tests.system.office import Office


class Letters:
    """Agent `a` posts a letter, which nobody can take back or find again."""

    def __init__(self) -> None:
        self.posted: list[str] = []

        @tool(effect="once")
        async def post(request: str) -> str:
            """Post a letter."""
            self.posted.append(request)
            return "posted"

        self.post = post

    async def write(self, turn: Turn) -> Move:
        return turn.complete(await turn.call(self.post, request=turn.request))


async def settled(stage: Stage, request: str, outcome: Literal["done", "not_done"]) -> str:
    """Wait for a doubt, and settle it; return why it was in doubt."""
    doubted = await stage.reached(request, events.EffectDoubted)
    settle = Settle(
        id=f"settle-{doubted.id}", turn=doubted.turn, round=doubted.round, outcome=outcome, result="posted"
    )
    await stage.control(request, settle)
    return doubted.effect.message


async def lost_in(bus: Bus, agent: str) -> LostTime | None:
    found = await get(bus, steps_of(agent), subjects.lost_time(agent))
    return None if found is None else msgspec.json.decode(found.data, type=LostTime)


async def test_a_once_effect_of_lost_time_is_in_doubt_and_not_begun_again(tmp_path: Path) -> None:
    letters = Letters()
    async with furnished_mesh(tmp_path / "first") as mesh, staged(mesh, guards=1) as stage:
        client, admin = await stage.client(), await stage.bus("admin")
        done = await client.submit("written before the backup", to="a")
        agent = await stage.runtime(Agent("a", letters.write))
        await client.wait(done, timeout_s=PATIENCE_S)
        await stage.stop(agent)
        open_ = [await client.submit("written after it", to="a") for _ in range(2)]
        for request in open_:
            await stage.reaches(request, "request.opened")
        await backup(admin, tmp_path / "backup")
        await stage.runtime(Agent("a", letters.write), "again")
        unknown = await client.submit("sent after it", to="a")
        for request in (open_[0], unknown):
            await client.wait(request, timeout_s=PATIENCE_S)
        before = list(letters.posted)
    async with empty_server(mesh, tmp_path / "second") as second:
        async with second.connected_as("admin") as admin:
            made = await restore(admin, tmp_path / "backup")
        assert made.lost is not None
        async with staged(second, guards=1) as stage:
            client = await stage.client()
            await stage.runtime(Agent("a", letters.write))
            await client.submit("sent after it", to="a", request=unknown)
            for request in (*open_, unknown):
                why = await settled(stage, request, "done" if request in before else "not_done")
                assert "whose steps a restore lost" in why
                await client.wait(request, timeout_s=PATIENCE_S)
            fresh = await client.submit("sent after the restore", to="a")
            await client.wait(fresh, timeout_s=PATIENCE_S)
            assert "effect.doubted" not in await stage.types(fresh)
    assert sorted(letters.posted) == sorted([done, *open_, unknown, fresh]), "each once"


def cut_log(folder: Path, through: int) -> None:
    """Let a backup's log end earlier than its journals, as if work had gone on between the two copies."""
    manifest = read_manifest(folder)
    log = manifest.streams["LOG"]
    (file,) = log.files
    lines = (folder / file.name).read_bytes().splitlines(keepends=True)[: through - file.first + 1]
    text = b"".join(lines)
    (folder / file.name).write_bytes(text)
    shorter = msgspec.structs.replace(
        file, last=through, messages=len(lines), bytes=len(text), sha256=hashlib.sha256(text).hexdigest()
    )
    cut = msgspec.structs.replace(log, through=through, files=(shorter,))
    streams = {**manifest.streams, "LOG": cut}
    write(folder, msgspec.structs.replace(manifest, through=through, streams=streams))


async def test_a_round_that_only_its_journal_knows_does_not_stop_the_one_that_comes_again(
    tmp_path: Path,
) -> None:
    """The later round has fenced the one that is open in the log, and has steps of its own."""
    told: list[str] = []

    @tool
    async def look(what: str) -> str:
        """Look."""
        told.append(what)
        return what

    async def asks(turn: Turn) -> Move:
        await turn.call(look, what="before")
        if turn.reply is None:
            return turn.ask("go on?", of=None)
        return turn.complete(await turn.call(look, what=f"after {turn.reply}"))

    async def answered(stage: Stage, request: str, reply: str) -> Any:
        asked = await stage.reached(request, events.TurnSuspended)
        said = ReplyToAsk(id=reply, turn=asked.turn, round=asked.round, value=reply)
        await stage.control(request, said, sender="c1")
        return (await (await stage.client()).wait(request, timeout_s=PATIENCE_S)).answer

    async with furnished_mesh(tmp_path / "first") as mesh, staged(mesh, guards=1) as stage:
        await stage.runtime(Agent("a", asks))
        request = await (await stage.client()).submit("hello", to="a")
        assert await answered(stage, request, "yes") == "after yes"
        await backup(await stage.bus("admin"), tmp_path / "backup")
    cut_log(tmp_path / "backup", 1)
    async with empty_server(mesh, tmp_path / "second") as second:
        async with second.connected_as("admin") as admin:
            await restore(admin, tmp_path / "backup")
        async with staged(second, guards=1) as stage:
            await stage.runtime(Agent("a", asks))
            assert await answered(stage, request, "now") == "after now"
    assert told == ["before", "after yes", "after now"], "what the open round had recorded is not done again"


async def test_the_lost_time_begins_as_asked_ends_with_the_restore_and_is_kept_by_the_next(
    tmp_path: Path,
) -> None:
    folder, again = tmp_path / "backup", tmp_path / "again"
    async with mesh_with_requests(tmp_path / "first") as stage:
        made = await backup(await stage.bus("admin"), folder)
    before_us = time.time_ns() // 1000
    async with empty_server(stage.mesh, tmp_path / "second") as second, second.connected_as("admin") as admin:
        await restore(admin, folder)
        by_default = await lost_in(admin, "a")
        assert by_default is not None
        assert made.at.startswith(time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(by_default.since / 1e6)))
        assert before_us <= by_default.until <= time.time_ns() // 1000
        assert [each.request async for each in trim_steps(admin, older_than_s=0)] == []
        await backup(admin, again)
    async with empty_server(stage.mesh, tmp_path / "third") as third, third.connected_as("admin") as admin:
        assert (await restore(admin, again, since=math.inf)).lost is None
        assert await lost_in(admin, "a") == by_default, "what the first one lost is lost still"
    async with empty_server(stage.mesh, tmp_path / "fourth") as fourth, fourth.connected_as("admin") as admin:
        await restore(admin, again, since=1_000_000)
        asked = await lost_in(admin, "a")
        assert asked is not None
        assert (asked.since, asked.until > by_default.until) == (1_000_000, True)
    async with empty_server(stage.mesh, tmp_path / "fifth") as fifth, fifth.connected_as("admin") as admin:
        await restore(admin, folder, since=math.inf)
        assert await lost_in(admin, "a") is None


async def test_a_client_whose_clock_is_ahead_has_older_requests_too(tmp_path: Path) -> None:
    async with mesh_with_requests(tmp_path / "first", 0) as stage:
        client, ahead_ms = await stage.client(), time.time_ns() // 1_000_000 + 240_000
        ahead = request_id("c1", ahead_ms, bytes(10))
        await client.submit("hello", to="a", request=ahead)
        await stage.reaches(ahead, "request.opened")
        await backup(await stage.bus("admin"), tmp_path / "backup")
    async with empty_server(stage.mesh, tmp_path / "second") as second, second.connected_as("admin") as admin:
        made = await restore(admin, tmp_path / "backup")
        assert made.lost is not None
        assert made.lost.until > ahead_ms * 1000


async def test_journals_that_are_full_are_restored_with_the_limit_that_they_had(tmp_path: Path) -> None:
    folder, letters = tmp_path / "backup", Letters()
    async with furnished_mesh(tmp_path / "first") as mesh, staged(mesh, guards=1) as stage:
        client = await stage.client()
        await stage.runtime(Agent("a", letters.write))
        await client.wait(await client.submit("hello", to="a"), timeout_s=PATIENCE_S)
        await backup(await stage.bus("admin"), folder)
    manifest, name = read_manifest(folder), steps_of("a")
    stream = manifest.streams[name]
    assert stream.messages
    full = msgspec.structs.replace(stream, config={**stream.config, "max_msgs": stream.messages})
    write(folder, msgspec.structs.replace(manifest, streams={**manifest.streams, name: full}))
    async with empty_server(mesh, tmp_path / "second") as second, second.connected_as("admin") as admin:
        await restore(admin, folder)
        info = await admin.api(f"STREAM.INFO.{name}")
        assert info["config"]["max_msgs"] == stream.messages
        assert info["config"]["max_bytes"] == stream.config["max_bytes"]
        assert info["state"]["messages"] == stream.messages + 1
        assert await lost_in(admin, "a") is not None


async def test_the_command_says_since_when_effects_may_have_begun(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with mesh_with_requests(tmp_path / "first", 0) as stage:
        await submitted(stage, 1)
        await backup(await stage.bus("admin"), folder)
    async with empty_server(stage.mesh, tmp_path / "second") as second:
        office = Office(Stage(second), tmp_path)
        for wrong in (("--since", "1h", "--nothing-lost"), ("--since", "2999-01-01")):
            assert (await office.mesh("restore", folder, *wrong, who="admin")).status == Exit.USAGE
        said = await office.mesh("restore", folder, "--since", "2026-11-21T02:00Z", who="admin")
        assert "`once` effects may have been begun since 2026-11-21T02:00:00Z" in said.out
    async with empty_server(stage.mesh, tmp_path / "third") as third:
        office = Office(Stage(third), tmp_path)
        said = await office.mesh("restore", folder, "--nothing-lost", who="admin")
        assert said.status == Exit.DONE
        assert "may have been begun" not in said.out
