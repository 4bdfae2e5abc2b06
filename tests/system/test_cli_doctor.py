"""What stands still is found: agents that nobody serves, open breakers, unpriced models, wrong keys."""

import asyncio
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh.agent._instance import publish_card
from mesh.cli.exits import Exit
from protocol.wire import subjects
from protocol.wire.config import Policy
from protocol.wire.handoff import Budget
from protocol.wire.moves import Complete
from protocol.wire.records import Card
from tests.guard.stage import Stage
from tests.servers import eventually
from tests.system.office import Office


async def findings(office: Office, check: str, *more: str, who: str = "op") -> list[tuple[str, str]]:
    done = await office.mesh("doctor", "--json", *more, who=who)
    return [(each["state"], each["text"]) for each in done.json if each["check"] == check]


async def test_an_agent_that_nobody_serves_is_named_with_what_waits_since_when(
    office: Office, stage: Stage
) -> None:
    client = await stage.client()
    one, other = await client.submit("hello", to="e"), await client.submit("hello", to="e")
    await stage.reaches(one, "request.opened")
    await stage.reaches(other, "request.opened")
    await stage.drained()
    [text] = [text for _, text in await findings(office, "agents") if " e;" in text]
    assert text.startswith("nobody serves e; 2 handoffs wait for it, the oldest since 2")
    assert text.index(one) < text.index(other)

    assert (await office.mesh("request", "cancel", one)).status == Exit.DONE
    [text] = [text for _, text in await findings(office, "agents") if " e;" in text]
    assert "1 handoff waits" in text
    assert one not in text
    assert (await office.mesh("request", "cancel", other)).status == Exit.DONE
    given_to_people = await client.submit("hello", to="e", policy="alone")
    await stage.reaches(given_to_people, "escalation.raised")
    assert ("found", "nobody serves e; nothing that is still open waits for it") in await findings(
        office, "agents"
    )


async def test_one_handoff_waits_and_several_wait(office: Office, stage: Stage) -> None:
    client = await stage.client()
    for said in ("1 handoff waits for it", "2 handoffs wait for it"):
        request = await client.submit("hello", to="d")
        await stage.reaches(request, "request.opened")
        assert f"nobody serves d; {said}" in (await office.mesh("agent", "show", "d")).err


async def test_a_story_says_that_nobody_serves_whom_it_waits_for(office: Office, stage: Stage) -> None:
    request = await (await stage.client()).submit("hello", to="c")
    await stage.reaches(request, "request.opened")
    told = (await office.mesh("request", "show", request)).out
    assert "waits for c since 2" in told
    assert "; nobody serves c" in told
    [waiting] = (await office.mesh("request", "show", request, "--json")).json["waiting"]
    assert (waiting["for"], waiting["served"]) == ("c", False)
    viewers = (await office.mesh("request", "show", request, "--json", who="audit")).json
    assert viewers["waiting"][0]["served"] is None  # a viewer may not ask

    c = await stage.actor("c", served=True)

    async def is_served() -> bool:
        told = (await office.mesh("request", "show", request, "--json")).json
        return bool(told["waiting"][0]["served"])

    await eventually(is_served)
    assert "nobody serves" not in (await office.mesh("request", "show", request)).out
    await c.propose(request, await c.work(request), Complete(answer="done"))
    await stage.reaches(request, "request.completed")
    assert (await office.mesh("request", "show", request, "--json")).json["waiting"] == []


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        pytest.param(
            {"state": "open", "opened_at": 1_700_000_000_000_000}, "is open since 2023-11-14", id="open"
        ),
        pytest.param({"state": "half_open", "more": [1]}, "is half_open since 2", id="half-open"),
        pytest.param(
            {"state": "open", "opened_at": "?"}, "opened_at: expected `int | null`", id="a-strange-time"
        ),
        pytest.param([1], "the entry of d cannot be read", id="unreadable"),
    ],
)
async def test_a_breaker_that_is_not_closed_is_named(
    office: Office, stage: Stage, entry: Any, said: str
) -> None:
    admin = await stage.bus("admin")
    await admin.publish_durable(subjects.breaker("d"), msgspec.json.encode(entry))
    [(state, text)] = await findings(office, "breakers")
    assert state == "found"
    assert said in text
    await admin.publish_durable(subjects.breaker("d"), b'{"state": "closed"}')
    assert await findings(office, "breakers", who="audit") == [("ok", "none is open")]


@pytest.mark.parametrize(
    ("subject", "body", "told"),
    [
        pytest.param(
            subjects.policy("odd"),
            b'{"name":"odd","max_depth":0,"deadline_s":-1}',
            "max_depth: expected `int` >= 1; deadline_s: expected `float` > 0.0; guards refuse requests",
            id="policy",
        ),
        pytest.param(subjects.PRICES, b"?", "guards refuse new requests", id="prices"),
        pytest.param(subjects.FLEET, b'{"name":"x","entry":"z"}', "entry: 'z' is no agent", id="fleet"),
    ],
)
async def test_a_document_that_guards_cannot_read_is_named_with_its_mistakes(
    office: Office, stage: Stage, subject: str, body: bytes, told: str
) -> None:
    admin = await stage.bus("admin")
    stands = await admin.request(f"$JS.API.DIRECT.GET.CONF.{subject}")
    await admin.publish_durable(subject, body)
    for who in ("op", "audit"):
        [(state, text)] = await findings(office, "documents", who=who)
        assert state == "found"
        assert text.startswith(f"{subject} cannot be read: ")
        assert told in text
    if stands.status:
        await admin.api("STREAM.PURGE.CONF", {"filter": subject})
    else:
        await admin.publish_durable(subject, stands.data)
    assert await findings(office, "documents") == [("ok", "fleet, policies and prices can be read")]


async def test_a_freeze_that_cannot_be_read_is_told_as_a_freeze_with_the_reason(
    office: Office, stage: Stage
) -> None:
    admin = await stage.bus("admin")
    await admin.publish_durable(subjects.FREEZE, b"?")
    [(state, text)] = await findings(office, "freeze")
    assert state == "found"
    assert "mesh.conf.freeze cannot be read" in text
    assert "mesh thaw" in text
    await admin.api("STREAM.PURGE.CONF", {"filter": subjects.FREEZE})


async def test_little_room_for_the_log_and_journals_that_are_nearly_full_are_named(
    own_stage: Stage, tmp_path: Path
) -> None:
    office, admin = Office(own_stage, tmp_path), await own_stage.bus("admin")
    monitor = own_stage.mesh.server.monitor_url
    said = await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(f"{monitor}/varz")))
    store = said["jetstream"]
    free = store["config"]["max_storage"] - store["stats"]["reserved_storage"]
    looked = ("limits", "--monitor", monitor)
    assert [state for state, _ in await findings(office, *looked)] == ["ok"]

    config = (await admin.api("STREAM.INFO.STEPS-a"))["config"]
    claim = {**config, "max_bytes": config["max_bytes"] + free - (1 << 29), "max_msgs": 10}
    await admin.api("STREAM.UPDATE.STEPS-a", claim)
    agent = await own_stage.bus("a")
    for n in range(9):
        await agent.publish_durable(subjects.step("a", "r", "t", f"0-{n}"), b"{}")
    (_, full), (_, room) = await findings(office, *looked)
    assert full == "STEPS-a has 9 of max_msgs 10 (90%): mesh log trim-steps"
    assert "promised to others than LOG" in room

    await admin.api("STREAM.UPDATE.STEPS-a", config)
    log = (await admin.api("STREAM.INFO.LOG"))["config"]
    await admin.api("STREAM.UPDATE.LOG", {**log, "max_bytes": free - (1 << 29)})
    assert [state for state, _ in await findings(office, *looked)] == ["ok"], "the log has room of its own"


FILE = """
name = "stage"
entry = "a"
[agents.a]
[agents.b]
[agents.c]
[agents.d]
[agents.e]
[clients.c1]
[clients.c2]
[operators.op]
[viewers.audit]
[human]
"""
PRICE = {"input": 1, "output": 2}


async def test_models_of_cards_that_have_no_price_are_named(own_stage: Stage, tmp_path: Path) -> None:
    office, admin = Office(own_stage, tmp_path), await own_stage.bus("admin")

    async def found() -> tuple[str, str]:
        done = await office.mesh("doctor", "--json", who="audit")
        ((state, text),) = [(each["state"], each["text"]) for each in done.json if each["check"] == "prices"]
        return state, text

    assert (await found())[0] == "ok"
    drives = {"a": "big-20261101", "b": "small", "c": "scripted", "d": "small", "e": "other"}
    for name, model in drives.items():
        await publish_card(await own_stage.bus(name), Card(name=name, version="1", model=model))
    await (await own_stage.bus("e")).publish_durable(subjects.card("e"), b'{"model":5}')
    await admin.publish_durable(subjects.PRICES, msgspec.json.encode({"big": PRICE}))
    said = "no price is known of small of b, d: say [prices] in the fleet file and run `mesh setup`"
    assert await found() == ("unknown", said)
    poor = Policy(name="poor", budget=Budget(nano_dollars=5))
    await admin.publish_durable(subjects.policy("poor"), msgspec.json.encode(poor))
    assert await found() == ("found", f"{said}; policy poor limits dollars")

    prices = "[prices]\nbig = {input = 1, output = 2}\n"
    (tmp_path / "mesh.toml").write_text(FILE + prices)
    assert f"mesh: {said}" in (await office.mesh("setup", who="admin")).err
    (tmp_path / "mesh.toml").write_text(f"{FILE}{prices}small = {{input = 0, output = 0}}\n")
    assert "no price" not in (await office.mesh("setup", who="admin")).err
    assert (await found())[0] == "ok"


FLEET = """
name = "stage"
entry = "a"
[agents.a]
[clients.c1]
[operators.op]
[viewers.audit]
"""
READERS = "this needs a key with the role viewer or operator (--as, MESH_CREDENTIALS)"
SENDERS = "this needs a key with the role client or operator (--as, MESH_CREDENTIALS)"


@pytest.mark.parametrize(
    ("arguments", "who", "said"),
    [
        pytest.param(["cost"], "c1", f"c1 has the role client; {READERS}", id="cost-as-a-client"),
        pytest.param(["request", "ls"], "a", f"a has the role agent; {READERS}", id="ls-as-an-agent"),
        pytest.param(["send", "x"], "audit", f"audit has the role viewer; {SENDERS}", id="send-as-a-viewer"),
        pytest.param(
            ["freeze"],
            "audit",
            "audit has the role viewer; this needs a key with the role operator (--as, MESH_CREDENTIALS)",
            id="freeze-as-a-viewer",
        ),
    ],
)
async def test_a_key_of_the_wrong_role_is_named_with_the_one_that_it_takes(
    office: Office, arguments: list[str], who: str, said: str
) -> None:
    (office.folder.path / "mesh.toml").write_text(FLEET)
    done = await office.process(*arguments, who=who)
    assert (done.status, done.err) == (Exit.USAGE, f"mesh: {said} [cli.usage]\n")


async def test_where_nothing_tells_the_role_the_refusal_is_told_too(office: Office) -> None:
    done = await office.mesh("cost", who="c1")
    denied = "not allowed to publish to $JS.API.DIRECT.GET.LOG"
    assert done.status == Exit.USAGE
    assert done.err == f"mesh: the key of c1 will not do; {READERS}: {denied} [cli.usage]\n"


async def test_a_refusal_that_no_other_key_explains_stays_as_it_is(office: Office) -> None:
    """By the file here c1 may look: that the bus says no has another cause, and its subject is what tells."""
    (office.folder.path / "mesh.toml").write_text(
        FLEET.replace("[clients.c1]", "[clients.x]").replace("[viewers.audit]", "[viewers.c1]")
    )
    done = await office.mesh("cost", who="c1")
    denied = "not allowed to publish to $JS.API.DIRECT.GET.LOG"
    assert (done.status, done.err) == (Exit.FAILED, f"mesh: {denied} [bus.denied]\n")


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
async def test_a_doctor_who_cannot_look_is_not_content(office: Office, options: list[str]) -> None:
    done = await office.mesh("doctor", *options, who="c1")
    assert done.status == Exit.USAGE, done
    assert done.err == (
        "mesh: the key of c1 will not do; this needs a key with the role operator or viewer "
        "(--as, MESH_CREDENTIALS) [cli.usage]\n"
    )
    assert "dead letters" in done.out


async def test_who_fills_the_log_is_told(office: Office, stage: Stage) -> None:
    stranger, client = await stage.client("c2"), await stage.client()
    for request in [await stranger.submit("x" * 30_000) for _ in range(4)] + [await client.submit("short")]:
        await stage.reaches(request, "request.opened")
    hour, day = [text for state, text in await findings(office, "log") if state == "ok"]
    said = re.match(
        r"in the last hour (\d+) events, about .*iB; by client: c2 \d+%(, c1 \d+%)?; by agent: ", hour
    )
    assert said is not None, hour
    assert int(said[1]) >= 5
    assert day.startswith("in the last day ")


async def test_a_broken_fleet_file_here_is_a_finding_and_the_bus_is_looked_at(office: Office) -> None:
    (office.folder.path / "mesh.toml").write_text("[agents\n")
    findings = (await office.mesh("doctor", "--json")).json
    assert (findings[0]["check"], findings[0]["state"]) == ("fleet file", "found")
    assert "line 1" in findings[0]["text"]
    assert len(findings) > 5
    named = await office.mesh("doctor", "--file", "mesh.toml")
    assert named.status == Exit.USAGE
