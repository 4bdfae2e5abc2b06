"""`mesh human watch`: somebody is told, by a line and by a command of their own."""

import asyncio
import json
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mesh.bus.connection import Bus
from mesh.cli.exits import Exit
from mesh.errors import Unreachable
from mesh.ops import dead_letters
from mesh.ops import watch as watching
from mesh.ops.queue import Queue, queue
from mesh.ops.watch import Watch
from protocol.wire.commands import Resolve
from protocol.wire.moves import Escalate
from protocol.wire.records import DeadLetter
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, until
from tests.system.office import Office
from tests.system.terminal import Folder

WATCHING = "watching; Ctrl-C ends it"
NASTY = "$(touch pwned) `touch pwned`; touch pwned & \"'\x1b[2J"

PAGER = """
import json, os, sys
facts = {name: value for name, value in os.environ.items() if name.startswith("MESH_")}
with open(sys.argv[1], "a") as file:
    file.write(json.dumps({"facts": facts, "alarm": json.load(sys.stdin)}) + "\\n")
"""


def pager(path: Path) -> str:
    """Return a command that writes down what it is told, in `told` beside it."""
    script = path / "pager.py"
    script.write_text(PAGER)
    return shlex.join([sys.executable, str(script), str(path / "told")])


def told(path: Path) -> list[dict[str, Any]]:
    file = path / "told"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def test_somebody_is_told_of_whatever_waits_for_people(
    office: Office, stage: Stage, tmp_path: Path
) -> None:
    before = await office.escalated()
    async with office.running("human", "watch", "--exec", pager(tmp_path), until=before) as watch:
        escalated, asked, doubted = await office.escalated(), await office.asked(), await office.doubted()
        for_the_client = await office.asked("c1")
        await stage.control(escalated, Resolve(id="x", turn="nothing"))  # type: ignore[arg-type]
        await stage.buried("unknown_turn", request=escalated)
        await until(lambda: len(told(tmp_path)) >= 5 and "dead_letter" in watch.said)
        assert await asyncio.to_thread(watch.end, signal.SIGTERM) == Exit.INTERRUPTED
        said = watch.said
    facts = {(each["facts"]["MESH_WHAT"], each["facts"]["MESH_REQUEST"]): each for each in told(tmp_path)}
    expected = {
        ("escalation", before),
        ("escalation", escalated),
        ("ask", asked),
        ("doubt", doubted),
        ("dead_letter", escalated),
    }
    assert expected <= set(facts)
    assert for_the_client not in said
    ask = facts["ask", asked]
    assert ask["facts"]["MESH_SUMMARY"] == "which one?"
    assert (ask["facts"]["MESH_AGENT"], ask["facts"]["MESH_URL"]) == ("a", stage.mesh.url)
    assert ask["alarm"]["waiting"]["request"] == asked
    assert facts["dead_letter", escalated]["facts"]["MESH_REASON"] == "unknown_turn"
    assert int(facts["dead_letter", escalated]["facts"]["MESH_SEQ"]) > 0
    for _, request in expected:
        assert request in said


async def test_each_tier_of_an_escalation_is_told(office: Office, tmp_path: Path) -> None:
    async with (
        office.running("human", "watch", "--new", "--exec", pager(tmp_path), until=WATCHING),
        office.running("human", "watch", "--new", "--tier", "lead", until=WATCHING) as lead,
    ):
        request = await office.escalated(policy="tiered")
        await until(lambda: len(told(tmp_path)) >= 3 and lead.said.count(request) >= 2)
        said = lead.said
    tiers = [(each["facts"]["MESH_TIER"], each["facts"]["MESH_TIER_NAME"]) for each in told(tmp_path)]
    assert tiers[:3] == [("1", "desk"), ("2", "lead"), ("3", "lead")], "the last tier keeps it"
    assert {each["facts"]["MESH_REQUEST"] for each in told(tmp_path)} == {request}
    first = next(each for each in told(tmp_path) if each["facts"]["MESH_TIER"] == "1")
    at = datetime.fromtimestamp(int(first["facts"]["MESH_AT"]) / 1e6, UTC)
    assert at.isoformat(timespec="milliseconds").removesuffix("+00:00") not in said, "that was the desk's"
    await office.mesh("request", "cancel", request)


async def test_each_tier_lists_what_it_has(office: Office, stage: Stage) -> None:
    raised = await office.escalated(policy="tiered")
    await stage.reaches(raised, "escalation.raised", 2)
    asked = await office.asked()

    async def listed(*options: str) -> dict[str, str]:
        done = await office.mesh("human", "ls", "--json", *options)
        return {each["request"]: each["tier_name"] for each in done.json}

    assert (await listed("--tier", "lead")).get(raised) == "lead"
    assert (await listed("--tier", "desk")).get(asked) == "desk"
    assert asked not in await listed("--tier", "lead")
    wrong = await office.mesh("human", "ls", "--tier", "nobody")
    assert (wrong.status, "its tiers: desk, lead" in wrong.err) == (Exit.USAGE, True)
    await office.mesh("request", "cancel", raised)


async def test_what_strangers_write_is_never_a_command(office: Office, stage: Stage, tmp_path: Path) -> None:
    request, work = await office.begun()
    await (await stage.actor("a")).propose(request, work, Escalate(summary=NASTY))
    await stage.reaches(request, "escalation.raised")
    command = f'echo "$MESH_SUMMARY" > shown; {pager(tmp_path)}'
    done = await office.process("human", "watch", "--once", "--exec", command)
    assert done.status == Exit.DONE, done
    mine = [each for each in told(tmp_path) if each["facts"]["MESH_REQUEST"] == request]
    assert [each["alarm"]["summary"] for each in mine] == [NASTY]
    assert not (tmp_path / "pwned").exists()
    assert "\x1b" not in done.out + mine[0]["facts"]["MESH_SUMMARY"]


async def test_a_command_that_fails_or_hangs_is_named_and_the_watch_goes_on(office: Office) -> None:
    one, other = await office.escalated(), await office.escalated()
    command = f'test "$MESH_REQUEST" = {one} && exec sleep 1000; exit 7'
    done = await office.process("human", "watch", "--once", "--exec-timeout", "0.5", "--exec", command)
    assert done.status == Exit.DONE, done
    assert f"the command for escalation {one} had not ended after 0.5 s, and was killed" in done.err
    assert f"the command for escalation {other} ended with 7" in done.err


async def test_once_tells_what_there_is_and_since_what_there_was(office: Office) -> None:
    began = datetime.now(UTC).isoformat()
    request = await office.escalated()
    again = await office.asked()
    once = (await office.process("human", "watch", "--once", "--json")).out.splitlines()
    assert {request, again} <= {json.loads(line)["request"] for line in once}
    assert (
        await office.mesh("human", "resolve", request, "--complete", "--answer", "no")
    ).status == Exit.DONE
    now = (await office.process("human", "watch", "--once")).out
    assert request not in now
    assert again in now
    since = (await office.process("human", "watch", "--once", "--since", began)).out
    assert since.index(request) < since.index(again)
    assert since.count(request) == 1
    recent = (await office.process("human", "watch", "--once", "--since", "1h")).out
    assert request in recent
    none = await office.process("human", "watch", "--once", "--since", "2100-01-01")
    assert (none.status, none.out) == (Exit.DONE, "")


async def test_new_leaves_out_what_waits_already(office: Office) -> None:
    before = await office.escalated()
    async with office.running("human", "watch", "--new", until=WATCHING) as watch:
        request = await office.escalated()
        await asyncio.to_thread(watch.wait_for, request)
        assert before not in watch.said


async def test_what_is_raised_while_the_watch_begins_is_told_once(
    office: Office, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile: list[str] = []

    async def slowly(bus: Bus) -> Queue:
        meanwhile.append(await office.escalated())
        return await queue(bus)

    monkeypatch.setattr(watching, "queue", slowly)
    told, last = list[str](), ""
    async with asyncio.timeout(PATIENCE_S):
        async for alarm in Watch(await stage.bus("op"), "nats://").alarms():
            told.append(alarm.request)
            if alarm.request == last:
                break
            if alarm.request in meanwhile and not last:
                last = await office.escalated()
    assert [told.count(request) for request in meanwhile] == [1]


async def test_a_bus_that_is_away_for_a_while_hides_no_dead_letter(
    office: Office, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, tries = await office.escalated(), 0
    every_letter = dead_letters.letters

    async def flaky(
        bus: Bus, from_seq: int = 1, told: set[dead_letters.LetterKey] | None = None
    ) -> AsyncIterator[tuple[int, DeadLetter]]:
        nonlocal tries
        tries += 1
        if tries == 1:
            await stage.control(request, Resolve(id="x", turn="nothing"))  # type: ignore[arg-type]
            raise Unreachable("the bus is away")
        async for each in every_letter(bus, from_seq, told):
            yield each

    monkeypatch.setattr(dead_letters, "letters", flaky)
    async with asyncio.timeout(PATIENCE_S):
        async for alarm in Watch(await stage.bus("op"), "nats://").alarms(waiting=False):
            if alarm.what == "dead_letter" and alarm.request == request:
                break
    assert tries > 1


async def test_a_watch_outlives_its_broker(own_stage: Stage, tmp_path: Path) -> None:
    office = Office(own_stage, tmp_path)
    async with office.running("human", "watch", "--exec", pager(tmp_path), until=WATCHING) as watch:
        first = await office.escalated()
        await asyncio.to_thread(watch.wait_for, first)
        await own_stage.mesh.server.kill()
        await own_stage.mesh.server.start()
        await own_stage.back()
        second = await office.escalated()
        await own_stage.control(second, Resolve(id="x", turn="nothing"))  # type: ignore[arg-type]
        await own_stage.buried("unknown_turn", request=second)
        await asyncio.to_thread(watch.wait_for, "dead_letter")

        await until(lambda: {first, second} <= {each["facts"]["MESH_REQUEST"] for each in told(tmp_path)})
        assert watch.said.count(first) == 1
        assert watch.said.count(f"escalation  {second}") == 1


@pytest.mark.parametrize(
    "options",
    [["--new", "--once"], ["--new", "--since", "1h"], ["--since", "yesterday"], ["--since", "999999999d"]],
    ids=" ".join,
)
def test_what_makes_no_sense_together_is_a_matter_of_usage(tmp_path: Path, options: list[str]) -> None:
    done = Folder(tmp_path).mesh("human", "watch", *options)
    assert done.status == Exit.USAGE, done
