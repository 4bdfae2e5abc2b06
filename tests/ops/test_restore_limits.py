"""What a restore must not lose, or begin too early: room for journals, requests by the clock, the fleet."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh import ops
from mesh.agent import Agent
from mesh.bus.connection import Bus
from mesh.bus.reader import every, last
from mesh.bus.streams import steps_of
from mesh.guard.context import Waits
from mesh.ops.backup import backup, read_manifest
from mesh.ops.restore import restore
from mesh.ops.schedules import SubmittedAt
from protocol.wire import events, subjects
from protocol.wire.commands import Cancel, Submit
from protocol.wire.ids import AgentName
from protocol.wire.schedule import ScheduleTick
from tests.guard.stage import Stage, staged
from tests.ops.restoring import Bank, empty_server, mesh_with_requests, submitted, write
from tests.ops.test_lost_time import cut_log
from tests.servers import PATIENCE_S, eventually, until

JOURNALS = steps_of("a")

# --- the fleet comes last -------------------------------------------------------------------------


async def test_a_guard_waits_for_the_fleet_until_a_restore_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, bank = tmp_path / "backup", Bank()
    async with mesh_with_requests(tmp_path / "first", 0) as stage:
        requests = await submitted(stage, 2)
        await backup(await stage.bus("admin"), folder)
    async with (
        empty_server(stage.mesh, tmp_path / "second") as second,
        contextlib.AsyncExitStack() as stack,
    ):
        beside = Stage(second, Waits(again_s=0.02, answer_s=PATIENCE_S))  # `staged` needs a log
        stack.push_async_callback(beside.close)
        admin, looking = await beside.bus("admin"), await beside.bus("guard", "early")
        looks, api, request = list[str](), admin.api, looking.request

        async def seen(subject: str, *args: Any, **more: Any) -> Any:
            if subject.endswith(f"CONF.{subjects.FLEET}"):
                looks.append(subject)
            return await request(subject, *args, **more)

        held, early = list[str](), list[str]()

        async def slowed(verb: str, *args: Any, **more: Any) -> Any:
            if verb == "STREAM.PURGE.CONF":
                before = len(looks)
                await until(lambda: guard.ready or guard._context.fleet.name != "" or len(looks) > before + 2)
                held.append(verb)
                early.extend(guard._context.fleet.name and [verb])
            return await api(verb, *args, **more)

        monkeypatch.setattr(looking, "request", seen)
        monkeypatch.setattr(admin, "api", slowed)
        guard = await beside.guard("early")
        await restore(admin, folder)
        assert len(held) > 2, "it looked while entries were written"
        assert not early, "it has read no fleet of a half CONF"
        await beside.ready(guard)
        for name, behave in (("a", bank.front), ("b", bank.back)):
            await beside.runtime(Agent(name, behave))
        for each in requests:
            await (await beside.client()).wait(each, timeout_s=PATIENCE_S)


async def test_a_restore_that_dies_once_guards_go_on_deletes_nothing_of_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest entry of CONF was purged before the backup, as `submit --at` does with old ones."""
    folder = tmp_path / "backup"
    async with mesh_with_requests(tmp_path / "first", 2) as stage:
        admin = await stage.bus("admin")
        await admin.publish_durable(subjects.tick("old"), b"{}")
        await admin.api("STREAM.PURGE.CONF", {"filter": subjects.tick("old")})
        await backup(admin, folder)
    async with empty_server(stage.mesh, tmp_path / "second") as second, second.connected_as("admin") as admin:
        api = admin.api

        async def dies(verb: str, *args: Any, **more: Any) -> Any:
            if verb == "STREAM.INFO.LOG":
                raise asyncio.CancelledError
            return await api(verb, *args, **more)

        with monkeypatch.context() as patched:
            patched.setattr(admin, "api", dies)
            with pytest.raises(asyncio.CancelledError):
                await restore(admin, folder)
        async with staged(second, guards=1) as beside:
            (accepted,) = await submitted(beside, 1)
            await restore(admin, folder)
            assert await beside.types(accepted) == ["request.opened"]
        config = (await admin.api("STREAM.INFO.CONF"))["config"]
        assert (config["allow_direct"], config["deny_delete"]) == (True, True)


# --- journals that outgrew their stream -----------------------------------------------------------

NIGHTS, STEPS = 3, 60
BODY = msgspec.json.encode({"text": "x" * 500})
LIMITS = {"max_msgs": 100, "max_bytes": 65_000}
"""Each is more than one night's steps take, and less than three nights'."""


async def record(stage: Stage, request: str, count: int) -> list[str]:
    """Write steps of a request's first round, as its agent does; return their subjects."""
    admin, work = await stage.bus("admin"), (await stage.log(request))[0].work
    assert work is not None
    written = [subjects.step("a", request, work.journal_id, f"{work.round}-{n}") for n in range(count)]
    for subject in written:
        await admin.publish_durable(subject, BODY)
    return written


async def three_nights(folder: Path, into: Path, **limit: int) -> tuple[Stage, list[str], list[str]]:
    """Back up three nights of steps that were trimmed in between; return open, then ended requests' steps.

    The steps of the open request are the oldest.
    """
    async with mesh_with_requests(folder, 0) as stage:
        admin = await stage.bus("admin")
        config = (await admin.api(f"STREAM.INFO.{JOURNALS}"))["config"]
        await admin.api(f"STREAM.UPDATE.{JOURNALS}", {**config, **limit})
        requests = await submitted(stage, 1 + NIGHTS)
        needed = await record(stage, requests[0], 10)
        ended = list[str]()
        for request in requests[1:]:
            ended += await record(stage, request, STEPS)
            await stage.control(request, Cancel(id=f"end-{request}"))
            await stage.reached(request, events.RequestCancelled)
            await backup(admin, into)
            await admin.api(f"STREAM.PURGE.{JOURNALS}", {"filter": f"mesh.step.a.{request}.*.*"})
    return stage, needed, ended


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_backup_that_outgrew_the_limits_of_journals_leaves_out_old_steps_of_ended_requests(
    limit: str, tmp_path: Path
) -> None:
    folder, most = tmp_path / "backup", LIMITS[limit]
    stage, needed, ended = await three_nights(tmp_path / "first", folder, **{limit: most})
    async with empty_server(stage.mesh, tmp_path / "second") as second, second.connected_as("admin") as admin:
        made = await restore(admin, folder)
        there = [each.subject async for each in every(admin, JOURNALS, None)]
        info = await admin.api(f"STREAM.INFO.{JOURNALS}")
        assert info["config"][limit] == most
        assert info["state"]["messages" if limit == "max_msgs" else "bytes"] < most
        kept = [each for each in there if each in set(ended)]
        assert there[: len(needed)] == needed, "the open request's"
        assert kept, "and of the others those that fit"
        assert kept == ended[-len(kept) :], "the newest ones"
        assert made.left_out == {JOURNALS: len(ended) - len(kept)}
        (request,) = {each.split(".")[3] for each in needed}
        await admin.publish_durable(subjects.step("a", request, "next", "1-0"), BODY)


async def test_steps_of_open_requests_are_restored_even_beyond_the_limit(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    stage, needed, ended = await three_nights(tmp_path / "first", folder)
    manifest = read_manifest(folder)
    stream = manifest.streams[JOURNALS]
    small = msgspec.structs.replace(stream, config={**stream.config, "max_msgs": len(needed) - 1})
    write(folder, msgspec.structs.replace(manifest, streams={**manifest.streams, JOURNALS: small}))
    async with empty_server(stage.mesh, tmp_path / "second") as second, second.connected_as("admin") as admin:
        made = await restore(admin, folder)
        there = [each.subject async for each in every(admin, JOURNALS, None)]
        assert there[: len(needed)] == needed
        assert not set(there) & set(ended)
        assert made.left_out == {JOURNALS: len(ended)}
        assert (await admin.api(f"STREAM.INFO.{JOURNALS}"))["config"]["max_msgs"] == len(needed) - 1


# --- requests by the clock ------------------------------------------------------------------------


async def outcome_of(bus: Bus, schedule: str) -> str:
    found = await last(bus, "CONF", subjects.tick(schedule), leader=True)
    return "" if found is None else msgspec.json.decode(found.data, type=ScheduleTick).outcome


async def comes_of(bus: Bus, schedule: str, outcome: str) -> None:
    """Wait until a schedule's tick has this outcome."""

    async def there() -> bool:
        return await outcome_of(bus, schedule) == outcome

    await eventually(there, PATIENCE_S)


async def begun_by_the_clock(stage: Stage, text: str) -> SubmittedAt:
    """Have a request submitted in a moment, and wait until it was."""
    admin, submit = await stage.bus("admin"), Submit(text=text, to=AgentName("a"))
    soon_us = time.time_ns() // 1000 + 500_000
    made = await ops.schedules.submit_at(admin, submit, soon_us, client="c1", by="kim")
    await comes_of(admin, made.schedule, "submitted")
    await stage.reaches(made.request, "request.opened")
    return made


async def test_a_request_for_a_time_that_began_between_the_copies_of_log_and_conf_begins_after_all(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "backup"
    async with mesh_with_requests(tmp_path / "first", 1) as stage:
        early = await begun_by_the_clock(stage, "in the log's copy")
        through = await stage.last_seq("LOG")
        late = await begun_by_the_clock(stage, "after it")
        await backup(await stage.bus("admin"), folder)
    cut_log(folder, through)
    async with empty_server(stage.mesh, tmp_path / "second") as second, second.connected_as("admin") as admin:
        await restore(admin, folder)
        assert await outcome_of(admin, early.schedule) == "submitted"
        async with staged(second, guards=1) as stage:
            await stage.reaches(late.request, "request.opened")
            await comes_of(admin, late.schedule, "submitted")
            assert await stage.types(early.request) == ["request.opened"]
