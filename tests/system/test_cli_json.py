"""What commands that do something tell a program: the same as people, as one JSON document."""

import json
import re
from pathlib import Path

from mesh.cli.exits import Exit
from mesh.guard.anchors import Anchors
from mesh.service.printable import when
from protocol.wire import codec
from protocol.wire.commands import MoveProposed
from protocol.wire.handoff import Fact
from protocol.wire.moves import Escalate
from tests.guard.stage import Stage, wall_clock_us
from tests.system.office import Office
from tests.system.terminal import Folder
from tests.system.test_cli_dead import kept


async def told(office: Office, *arguments: object, who: str = "op") -> dict[str, object]:
    """Give a command; return what it told a program, and see that it told it to nobody else."""
    done = await office.mesh(*arguments, "--json", who=who)
    assert done.status == Exit.DONE, done
    assert done.out.count("\n") == 1, done
    found: dict[str, object] = done.json
    return found


async def test_orders_about_a_request_name_the_event_that_obeyed_them(office: Office) -> None:
    request = await office.escalated()
    orders = [
        (("request", "freeze", request), "request.frozen"),
        (("request", "thaw", request), "request.thawed"),
        (("human", "assign", request, "rosa"), "escalation.assigned"),
        (("human", "resolve", request, "--to", "b"), "escalation.resolved"),
        (("request", "cancel", request), "request.cancelled"),
    ]
    for n, (words, kind) in enumerate(orders, start=2):
        said = await told(office, *words)
        assert (said["request"], said["event"], said["type"]) == (request, n, kind)


async def test_a_reply_tells_the_event_or_to_a_client_that_it_was_taken(office: Office) -> None:
    said = await told(office, "human", "reply", await office.asked(), "red")
    assert said["type"] == "turn.resumed"
    of_client = await office.asked(whom="c1")
    said = await told(office, "human", "reply", of_client, "red", who="c1")
    assert said == {"request": of_client, "event": None, "ended": None}


async def test_a_settled_doubt_tells_the_event(office: Office) -> None:
    said = await told(office, "doubt", "settle", await office.doubted(), "--not-done")
    assert (said["type"], said["to"]) == ("effect.settled", "a")


async def test_a_submit_and_a_rerun_tell_the_new_request(office: Office, stage: Stage) -> None:
    request = str((await told(office, "request", "submit", "hello", who="c1"))["request"])
    await stage.reaches(request, "request.opened")
    await told(office, "request", "cancel", request)
    again = await told(office, "request", "rerun", request, "--yes")
    assert (again["rerun_of"], again["effects"]) == (request, [])
    await stage.reaches(str(again["request"]), "request.opened")


async def test_the_whole_meshs_freeze_tells_how_it_stands(office: Office) -> None:
    try:
        stands = await told(office, "freeze", "--reason", "it burns", "--by", "kim")
        assert (stands["frozen"], stands["by"], stands["sender"]) == (True, "kim", "op")
        assert await told(office, "freeze") == stands, "nothing to do"
    finally:
        stands = await told(office, "thaw")
    assert stands["frozen"] is False
    assert (await told(office, "thaw"))["frozen"] is False


async def test_a_redacted_export_says_which_events_are_redacted_and_all_links_hold(
    office: Office, tmp_path: Path
) -> None:
    request, file = await office.escalated("a secret"), tmp_path / "log.jsonl"
    assert (await office.mesh("log", "export", request, "--redact", "0", "--out", file)).status == 0
    first, second = file.read_text().splitlines()
    assert "secret" not in first
    assert "secret" in second
    verified = {
        "requests": 1,
        "events": 2,
        "breaks": [],
        "redacted": [{"request": request, "n": 0}],
        "anchors": None,
    }
    assert await told(office, "log", "verify", file) == verified
    said = await office.mesh("log", "verify", file)
    assert "1 request, 2 events: all links hold, 1 event redacted" in said.out
    refused = await office.mesh("request", "show", file)
    assert "request.opened is redacted: it can be verified, and no more" in refused.err
    await told(office, "log", "export", request, "--redact", "all", "--out", file)
    assert "secret" not in file.read_text()
    redacted = [{"request": request, "n": n} for n in range(2)]
    assert (await told(office, "log", "verify", file))["redacted"] == redacted
    for wrong in ("x", "1-", "-1", "1;2"):
        assert (await office.mesh("log", "export", request, "--redact", wrong)).status == Exit.USAGE
    steps = await office.mesh("log", "export", request, "--redact", "all", "--with-steps")
    assert "steps hold what events do" in steps.err


async def test_an_export_and_its_check_tell_the_counts(office: Office, tmp_path: Path) -> None:
    request = await office.escalated()
    file = tmp_path / "log.jsonl"
    written = await told(office, "log", "export", request, "--out", file)
    assert written == {"file": str(file), "events": 2, "steps": 0}
    verified = {"requests": 1, "events": 2, "breaks": [], "redacted": [], "anchors": None}
    assert await told(office, "log", "verify", file) == verified
    file.write_bytes(file.read_bytes().replace(b"a person, please", b"nobody, please!!"))
    file.write_text("\n".join([*file.read_text().splitlines(), _following(file)]))
    done = await office.mesh("log", "verify", file, "--json")
    assert done.status == Exit.FAILED
    assert [each["request"] for each in done.json["breaks"]] == [request]


def _following(file: Path) -> str:
    last = json.loads(file.read_text().splitlines()[-1])
    return json.dumps({"request": last["request"], "n": last["n"] + 1, "prev": "0" * 64})


async def test_a_letter_put_back_tells_the_event(office: Office, stage: Stage) -> None:
    request, work = await office.begun()
    body = MoveProposed(turn=work.turn, round=0, move=Escalate(summary="help"))
    subject = f"mesh.prop.3.a.{request}"
    seq = await kept(stage, subject, codec.encode(body), sender="a", request=request)
    said = await told(office, "dead", "resend", seq, who="admin")
    assert (said["request"], said["type"]) == (request, "escalation.raised")


def test_setting_up_tells_each_change(tmp_path: Path) -> None:
    folder, out, fleet = Folder(tmp_path), tmp_path / "out", tmp_path / "mesh.toml"
    fleet.write_text('name = "x"\nentry = "a"\n[agents.a]\n[clients.app]\n[operators.ops]\n[viewers.audit]\n')
    first = folder.mesh("setup", "--out", out, "--json").json
    assert first["bus"] is None
    assert {"action": "write", "what": str(out / "accounts.conf"), "detail": []} in first["changes"]
    assert folder.mesh("setup", "--out", out, "--json").json["changes"] == []
    added = folder.mesh("agent", "add", "b", "--out", out, "--json").json
    assert (added["agent"], added["applied"], added["changes"]) == ("b", False, [])
    assert Path(added["key"]).is_file()
    exported = folder.mesh("schema", "export", "--out", tmp_path, "--json").json
    assert all(Path(each).is_file() for each in exported["written"])


async def test_times_are_iso_and_what_strangers_wrote_is_as_it_was(office: Office, stage: Stage) -> None:
    request, work = await office.begun()
    facts = (Fact(key="at", value={"at": 1_700_000_000_000_000, "since": 5}),)
    move = Escalate(summary="a person, please", facts=facts)
    await (await stage.actor("a")).propose(request, work, move)
    await stage.reaches(request, "escalation.raised")
    event = await office.last(request)
    raised = when(event.at)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", raised)
    listed = await office.mesh("request", "ls", "--json")
    assert next(each["at"] for each in listed.json if each["request"] == request) == raised
    waits = next(
        each for each in (await office.mesh("human", "ls", "--json")).json if each["request"] == request
    )
    assert waits["since"] == raised
    assert waits["due"] > raised
    assert (await told(office, "why", request))["at"] == raised
    shown = (await office.mesh("request", "show", request, "-o", "json")).json
    assert (shown["moves"][-1]["at"], shown["waiting"][0]["since"]) == (raised, raised)
    assert shown["events"][-1]["at"] == event.at, "an event is as it is stored"
    assert [fact["value"] for move in shown["moves"] for fact in move["facts"] if fact["key"] == "at"] == [
        facts[0].value
    ]


async def test_the_end_of_a_log_is_checked_against_what_guards_signed(office: Office, tmp_path: Path) -> None:
    request, stage = await office.escalated(), office.stage
    bodies, guard = await stage.bodies(request), await stage.bus("guard", "signer")
    signer = Anchors(guard, "signer", lambda: (), wall_clock_us)
    for n, body in enumerate(bodies):
        signer.stored(request, n, body, await stage.last_seq("LOG"))
    await signer.leave()
    log, anchors = tmp_path / "log.jsonl", tmp_path / "anchors.jsonl"
    assert (await told(office, "log", "anchors", "--out", anchors))["anchors"]
    assert anchors.stat().st_mode & 0o777 == 0o600
    await told(office, "log", "export", request, "--out", log)
    whole = await told(office, "log", "verify", log, "--anchors", anchors)
    (key,) = whole["anchors"]["keys"]  # type: ignore[index]
    on_the_bus = await told(office, "log", "verify", request, "--key", key)
    assert on_the_bus["anchors"]["vouched"] == 1  # type: ignore[index]
    assert "anchors vouch for the end of 1 of 1" in (await office.mesh("log", "verify", request)).out

    log.write_bytes(bodies[0] + b"\n")
    cut = await office.mesh("log", "verify", log, "--anchors", anchors)
    assert cut.status == Exit.FAILED
    assert f"{request} event 1: is missing" in cut.out
    other = await office.mesh("log", "verify", request, "--key", "U" + "A" * 55)
    assert other.status == Exit.FAILED
    assert f"is signed by {key}" in other.out
    nothing = await office.mesh("log", "verify", log, "--anchors", tmp_path / "nothing")
    assert nothing.status == Exit.USAGE
