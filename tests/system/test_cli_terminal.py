"""The terminal: tables that fit it, ids by their beginnings, yes and no in a word, the newest trouble."""

import asyncio
import re
import time
import unicodedata
from pathlib import Path

import pytest

from mesh.cli.exits import Exit
from protocol.wire.commands import Resolve
from protocol.wire.ids import request_id
from protocol.wire.moves import Escalate
from tests.guard.stage import Stage
from tests.system.office import Office

YES_OR_NO = {"type": "boolean"}
TABLES = {
    "human": ("human", "ls"),
    "doubts": ("doubt", "ls"),
    "requests": ("request", "ls"),
    "dead letters": ("dead", "ls"),
    "agents": ("agent", "ls"),
    "cost": ("cost", "--by", "request"),
    "tail": ("log", "tail", "--no-follow", "-n", "40"),
    "watch": ("human", "watch", "--once"),
}
LONG = "a very long sentence that no terminal has room for, " * 8


def width(line: str) -> int:
    """Return how many columns a line takes on a terminal."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
    return sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in plain)


async def test_every_table_fits_the_terminal_a_row_an_item(office: Office, stage: Stage) -> None:
    request, work = await office.begun()
    await (await stage.actor("a")).propose(request, work, Escalate(summary=f"退款 {LONG}"))
    await stage.reaches(request, "escalation.raised")
    await office.doubted()
    await stage.control(request, Resolve(id="x", turn="nothing"))  # type: ignore[arg-type]
    await stage.buried("unknown_turn", request=request)
    for name, command in TABLES.items():
        shown = await office.screen(*command)
        lines = [line for line in shown.splitlines() if line.strip()]
        assert lines, name
        assert max(map(width, lines)) <= 80, (name, shown)
    shown = await office.screen("human", "ls", COLUMNS="60")
    assert max(map(width, shown.splitlines())) <= 60
    assert request not in shown, "a prefix will do"
    [row] = [line for line in shown.splitlines() if request[:15] in line]
    assert re.search(r"\d+[smh] ago|now", row), row
    assert "…" in row
    assert "asked" in row, "the reason is there"
    assert "reason" in shown
    assert "tier" not in shown, "it goes first"


async def test_elsewhere_a_table_is_whole(office: Office) -> None:
    request = await office.escalated()
    header, *rows = (await office.mesh("human", "ls")).out.splitlines()
    columns = [
        "request",
        "since",
        "due",
        "urgent",
        "from",
        "what",
        "event",
        "tier",
        "person",
        "summary",
        "reason",
    ]
    assert header.split("\t") == columns
    [row] = [dict(zip(columns, row.split("\t"), strict=True)) for row in rows if row.startswith(request)]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", row["since"])
    assert (row["reason"], row["summary"]) == ("asked", "a person, please")


# --- what is read at length -----------------------------------------------------------------------

READ = (("why",), ("request", "show"), ("human", "show"))


async def test_words_are_wrapped_on_a_terminal_and_nowhere_else(office: Office, stage: Stage) -> None:
    request, work = await office.begun()
    await (await stage.actor("a")).propose(request, work, Escalate(summary=f"退款 {LONG}"))
    await stage.reaches(request, "escalation.raised")
    for command in READ:
        for columns, most in (("200", 80), ("60", 60)):
            shown = await office.screen(*command, request, COLUMNS=columns)
            reading = shown.partition("decide with one of")[0]  # commands are whole, to be copied
            assert max(map(width, reading.splitlines())) <= most, (command, columns, reading)
            assert "terminal has room" in re.sub(r"\s+", " ", reading)
        whole = (await office.mesh(*command, request)).out
        assert max(map(width, whole.splitlines())) > 100, command


@pytest.mark.parametrize("command", READ)
async def test_what_the_terminal_has_no_room_for_goes_to_the_pager(
    office: Office, tmp_path: Path, command: tuple[str, ...]
) -> None:
    request, read = await office.escalated(), tmp_path / "read"
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\ncat > {read}\n")
    pager.chmod(0o700)

    async def screen(*arguments: object, **added: str) -> str:
        own = office.credentials("op") | {"PAGER": str(pager)} | added
        return await asyncio.to_thread(office.folder.screen_with_keys, *command, *arguments, **own)

    assert request not in await screen(request, LINES="4")
    assert request in read.read_text()
    assert "\x1b" not in read.read_text()
    read.unlink()
    for added in ({"LINES": "400"}, {"LINES": "4", "PAGER": ""}, {"LINES": "4", "PAGER": "not-there"}):
        assert request in await screen(request, **added), added
    await screen(request, "--json", LINES="4")
    await office.process(*command, request)
    assert not read.exists()


# --- ids by their beginnings ----------------------------------------------------------------------


def prefix(request: str, length: int = 20) -> str:
    return request[: len("c1_") + length]


async def test_every_command_takes_the_beginning_of_an_id(office: Office, tmp_path: Path) -> None:
    request = await office.escalated()
    given = prefix(request)
    for command in (
        ("request", "show"),
        ("why",),
        ("replay",),
        ("cost",),
        ("log", "export"),
        ("log", "verify"),
        ("human", "show"),
    ):
        done = await office.mesh(*command, given)
        assert done.status == Exit.DONE, done
    exported = await office.mesh("log", "export", given)
    assert exported.out == (await office.mesh("log", "export", request)).out
    orders: tuple[tuple[str, ...], ...] = (
        ("human", "assign", given, "rosa"),
        ("request", "freeze", given),
        ("request", "thaw", given),
    )
    for order in orders:
        done = await office.mesh(*order)
        assert done.status == Exit.DONE, done
        assert request in done.out
    shown = await office.mesh("agent", "prompt", "a", "--request", given)
    assert f"begins with {given!r}" not in shown.err
    assert (await office.mesh("request", "cancel", given)).status == Exit.DONE
    watched = await office.mesh("request", "watch", given)
    assert watched.status == Exit.FAILED, "it was cancelled"
    assert watched.out.startswith("  0  ")


async def test_the_beginning_of_several_ids_is_told_with_the_candidates(office: Office, stage: Stage) -> None:
    client = await stage.client()
    now_ms = int(time.time() * 1000)
    one, other = (request_id("c1", now_ms, bytes(8) + bytes((0, each))) for each in (1, 2))
    assert prefix(one) == prefix(other)
    for request in (one, other):
        await client.submit("hello", request=request)
        await stage.reaches(request, "request.opened")
    done = await office.mesh("request", "cancel", prefix(one))
    assert done.status == Exit.USAGE, done
    assert f"{prefix(one)!r} is the beginning of several ids: {one}, {other}" in done.err
    for request in (one, other):
        assert (await stage.types(request))[-1] == "request.opened"
        assert (await office.mesh("request", "cancel", request)).status == Exit.DONE


async def test_the_beginning_of_no_id_says_so_and_nothing_is_done(office: Office) -> None:
    done = await office.mesh("request", "cancel", "c1_7ZZZ")
    assert (done.status, "no request in the log begins with 'c1_7ZZZ'" in done.err) == (Exit.FAILED, True)
    for wrong in ("c1", "c1_", "c1_0I", "C1_01", "*_01", "c1_01.>"):
        done = await office.mesh("request", "cancel", wrong)
        assert (done.status, "not a request's id" in done.err) == (Exit.USAGE, True), done


async def test_a_client_is_told_that_it_may_not_look(office: Office) -> None:
    request = await office.escalated()
    done = await office.mesh("request", "cancel", prefix(request), who="c1")
    assert done.status == Exit.USAGE, done
    assert "the key of c1 cannot look" in done.err
    assert "give the whole id" in done.err


# --- yes and no -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("word", "reply"), [("approve", True), ("deny", False)])
async def test_a_yes_and_a_no_are_a_word(office: Office, stage: Stage, word: str, reply: bool) -> None:
    request = await office.asked(schema=YES_OR_NO)
    assert f"mesh human {word} {request}" in (await office.mesh("human", "show", request)).out
    done = await office.mesh("human", word, prefix(request), "--by", "kim")
    assert (done.status, done.out) == (Exit.DONE, f"{request}: a goes on with the reply (event 3)\n"), done
    work = await (await stage.actor("a")).work(request, round_=1)
    assert (work.past[0].reply, work.past[0].by) == (reply, "kim")


@pytest.mark.parametrize("schema", [None, {"type": "string"}])
async def test_only_a_question_of_yes_or_no_is_approved(office: Office, stage: Stage, schema: object) -> None:
    request = await office.asked(schema=schema)
    done = await office.mesh("human", "approve", request)
    assert (done.status, "not yes or no" in done.err) == (Exit.USAGE, True), done
    assert (await stage.types(request))[-1] == "turn.suspended"


async def test_a_client_approves_what_it_was_asked(office: Office, stage: Stage) -> None:
    request = await office.asked("c1", schema=YES_OR_NO)
    assert (await office.mesh("human", "approve", request, who="c1")).status == Exit.DONE
    await stage.reaches(request, "turn.resumed")


# --- what is wrong --------------------------------------------------------------------------------


async def test_why_alone_explains_the_newest_that_is_stuck(office: Office, stage: Stage) -> None:
    older, newest = await office.escalated(), await office.escalated()
    told = await office.mesh("why")
    assert told.status == Exit.DONE, told
    assert told.out.startswith(newest)
    assert "waits for human since" in told.out
    assert f"{newest}, event 1 (escalation.raised)" in told.out
    assert (await office.mesh("why", "--json")).json["request"] == newest
    assert (await office.mesh("request", "cancel", newest)).status == Exit.DONE
    assert (await office.mesh("request", "freeze", older)).status == Exit.DONE
    assert (await office.mesh("why", "--json")).json["request"] == older
    assert "waits for thaw" in (await office.mesh("why")).out
    unserved = await (await stage.client()).submit("hello", to="e")
    await stage.reaches(unserved, "request.opened")
    assert "nobody serves e" in (await office.mesh("why")).out
    assert (await office.mesh("request", "cancel", unserved)).status == Exit.DONE


async def test_doctor_has_a_line_for_people_and_one_for_doubts(office: Office) -> None:
    escalated, doubted = await office.escalated(), await office.doubted()
    done = await office.mesh("doctor", "--json")
    people, doubts = [(each["state"], each["text"]) for each in done.json if each["check"] == "people"]
    assert people[0] == "ok", "decisions of people are no fault of the mesh"
    assert re.match(r"\d+ decisions? waits? for a person, the oldest since 2.*: mesh human ls", people[1])
    assert doubts[0] == "found"
    assert re.match(r"\d+ effects? in doubt waits? for a person, .*: mesh doubt ls", doubts[1])
    for request in (escalated, doubted):
        await office.mesh("request", "cancel", request)


async def test_a_key_that_the_server_does_not_know_is_named_with_the_server(
    office: Office, tmp_path: Path
) -> None:
    from mesh.bus.credentials import new_key, write_key

    seed = write_key(tmp_path, "kim", new_key())
    known = office.credentials("op")
    for command in (("human", "ls"), ("send", "hello")):
        said = known | {"MESH_NAME": "kim", "MESH_CREDENTIALS": str(seed)}
        done = await asyncio.to_thread(office.folder.mesh, *command, **said)
        assert done.status == Exit.UNREACHABLE, done
        for part in (known["NATS_URL"], str(seed), "kim", "[bus.authentication]"):
            assert part in done.err
