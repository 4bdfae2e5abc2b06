"""An agent is there for whoever looks: NATS micro's questions, its card, and what it makes of bad inboxes."""

import asyncio
import datetime as dt
from typing import Any

import msgspec
import pytest

from mesh.agent import _instance
from mesh.agent import _runtime as runtime_module
from mesh.agent.definition import Agent
from mesh.agent.tools import tool
from mesh.agent.turn import Turn
from mesh.bus.nats_protocol import Incoming
from mesh.ops.health import Look, run
from mesh.ops.roster import instances
from protocol.wire import subjects
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.ids import AgentName
from protocol.wire.moves import Move
from protocol.wire.records import Card
from tests.certain import known
from tests.guard.stage import FLEET, Stage
from tests.servers import PATIENCE_S, eventually, until


@tool(effect="once")
def pay(amount: int) -> None:
    """Pay."""


async def answers(turn: Turn) -> Move:
    return turn.complete("done")


LARGE = b"x" * 500_000
AGENT = Agent("a", answers, version="1.4", description="Answers.", prompt_version="p7", tools=(pay,))


async def asked(stage: Stage, subject: str, count: int = 1) -> list[dict[str, Any]]:
    """Return what `count` instances answer an operator."""
    op = await stage.bus("op")
    got: list[dict[str, Any]] = []

    def hear(message: Incoming) -> None:
        if message.data:
            got.append(msgspec.json.decode(message.data))

    inbox = await op.subscribe(op.new_inbox(), hear)
    op.send(subject, reply=inbox.subject)
    await until(lambda: len(got) >= count)
    await inbox.close()
    return got


async def test_an_agent_answers_who_it_is(stage: Stage) -> None:
    one = await stage.runtime(AGENT, use="1")
    two = await stage.runtime(AGENT, use="2")
    for subject in ("$SRV.PING", "$SRV.PING.a"):
        ping, *_ = await asked(stage, subject)  # two that answer in the same moment may both get through
        assert ping["id"] in (one.instance, two.instance)
        assert ping == {
            "type": "io.nats.micro.v1.ping_response",
            "name": "a",
            "id": ping["id"],
            "version": "1.4.0",
            "metadata": {"role": "agent", "agent-version": "1.4"},
        }
    for each in (one, two):
        (own,) = await asked(stage, f"$SRV.PING.a.{each.instance}")
        assert own["id"] == each.instance
    stats = await asked(stage, "$SRV.STATS.a", 2)
    assert {each["id"] for each in stats} == {one.instance, two.instance}


# --- who looks ------------------------------------------------------------------------------------


async def answering(stage: Stage, name: str, subject: str, answer: bytes) -> None:
    bus = await stage.bus(name)
    await bus.subscribe(subject, lambda message: bus.send(message.reply, answer) and None)


async def present(stage: Stage) -> dict[str, list[str]]:
    """Return the ids of each agent's instances, as an operator sees them."""
    alive = await instances(await stage.bus("op"), FLEET.agents)
    return {name: sorted(each.id for each in found) for name, found in known(alive).items() if found}


async def test_who_looks_sees_every_instance_and_what_it_did(stage: Stage) -> None:
    runtimes = [await stage.runtime(AGENT, use=str(number)) for number in range(2)]
    client = await stage.client()
    await client.wait(await client.submit("hello"), timeout_s=PATIENCE_S)
    assert await present(stage) == {"a": sorted(each.instance for each in runtimes)}

    async def counted() -> bool:
        alive = await instances(await stage.bus("op"), ["a"])
        return alive is not None and sum(each.handled for each in alive["a"]) == 1

    await eventually(counted)
    assert await instances(await stage.bus("audit"), FLEET.agents) is None  # viewers may not ask


async def test_an_agent_that_answers_pings_alone_is_there(stage: Stage) -> None:
    await answering(stage, "b", "$SRV.PING.b", b'{"name":"b","id":"one","version":"1.0.0"}')
    await answering(stage, "c", "$SRV.PING.c", b"not even JSON")
    await answering(stage, "d", "$SRV.STATS.d", b'{"name":"d","id":"no ping","version":"1.0.0"}')
    assert await present(stage) == {"b": ["one"], "c": [""]}
    findings = await run("agents", Look(await stage.bus("op")))
    assert [finding.text.split(";")[0] for finding in findings] == [f"nobody serves {each}" for each in "ade"]


async def test_what_an_agent_says_of_another_does_not_count(stage: Stage) -> None:
    for verb in ("PING", "STATS"):
        await answering(stage, "b", f"$SRV.{verb}.b", b'{"name":"a","id":"a lie","version":"1.0.0"}')
    assert await present(stage) == {"b": [""]}


async def test_no_more_instances_are_heard_than_fit_into_a_servers_buffer(stage: Stage) -> None:
    bus, op = await stage.bus("b"), await stage.bus("op")
    await answering(stage, "b", "$SRV.PING.b", b'{"name":"b","id":"0","version":"1.0.0"}')
    await bus.subscribe("$SRV.STATS.b", lambda message: [bus.send(message.reply, LARGE) for _ in range(300)])
    assert await present(stage) == {"b": ["0"]}
    assert op.connected
    assert op.counters.disconnects == 0
    assert op.counters.in_messages < 100


async def test_an_instance_answers_what_it_serves(stage: Stage) -> None:
    await stage.runtime(AGENT)
    (info,) = await asked(stage, "$SRV.INFO.a")
    assert info["type"] == "io.nats.micro.v1.info_response"
    assert info["description"] == "Answers."
    (endpoint,) = info["endpoints"]
    assert (endpoint["name"], endpoint["subject"]) == ("inbox", "mesh.evt.a.*")
    assert {"queue_group", "metadata"} <= set(endpoint)


async def test_an_instance_answers_how_it_fares(stage: Stage) -> None:
    async def breaks(turn: Turn) -> Move:
        if turn.facts["text"] == "break":
            raise RuntimeError
        return turn.complete("done")

    await stage.runtime(Agent("a", breaks))
    client = await stage.client()
    await client.wait(await client.submit("hello"), timeout_s=PATIENCE_S)
    await client.wait(await client.submit("hello"), timeout_s=PATIENCE_S)
    await stage.reaches(await client.submit("break", policy="strict"), "escalation.raised")

    async def counted() -> bool:
        (stats,) = await asked(stage, "$SRV.STATS.a")
        return bool(stats["endpoints"][0]["num_requests"] == 3)

    await eventually(counted)
    (stats,) = await asked(stage, "$SRV.STATS.a")
    assert stats["type"] == "io.nats.micro.v1.stats_response"
    assert dt.datetime.fromisoformat(stats["started"]).tzinfo is not None
    (endpoint,) = stats["endpoints"]
    assert (endpoint["num_errors"], endpoint["last_error"]) == (1, "bug")
    assert endpoint["processing_time"] // 3 == pytest.approx(endpoint["average_processing_time"], abs=1)


async def test_a_running_agent_shows_its_card(stage: Stage) -> None:
    runtime = await stage.runtime(AGENT)
    got = await (await stage.bus("admin")).request(f"$JS.API.DIRECT.GET.CARDS.{subjects.card('a')}")
    card = msgspec.json.decode(got.data, type=Card)
    assert (card.name, card.version, card.prompt_version) == ("a", "1.4", "p7")
    assert card.instance == runtime.instance
    assert card.tools == ({"name": "pay", "description": "Pay.", "effect": "once"},)


# --- the fleet ------------------------------------------------------------------------------------


async def test_an_agent_without_a_fleet_begins_no_turn_until_there_is_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_instance, "AGAIN_S", 0.02)
    admin, client = await stage.bus("admin"), await stage.client()
    request = await client.submit("hello")
    await stage.reaches(request, "request.opened")
    await admin.publish_durable(subjects.FLEET, b"\xff")
    bus = await stage.bus("a", "early")
    runtime = runtime_module.Runtime(bus, AGENT)
    running = asyncio.create_task(runtime.run())
    asked_before = bus.counters.requests
    await until(lambda: bus.counters.requests >= asked_before + 3)
    assert await stage.types(request) == ["request.opened"]
    await admin.publish_durable(subjects.FLEET, msgspec.json.encode(stage.mesh.fleet))
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"
    await runtime.drain(5.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_fleet_that_can_no_longer_be_read_leaves_the_last_good_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_instance, "AGAIN_S", 0.02)
    monkeypatch.setattr(_instance, "REFRESH_S", 0.02)
    runtime = await stage.runtime(AGENT)
    admin, client = await stage.bus("admin"), await stage.client()
    wider = Fleet(name="wider", entry=AgentName("a"), agents={"a": AgentEntry(name=AgentName("a"))})
    await admin.publish_durable(subjects.FLEET, msgspec.json.encode(wider))
    await until(lambda: runtime._around.fleet.name == "wider")
    reads = (await stage.bus("a", "runtime")).counters.requests
    await admin.publish_durable(subjects.FLEET, b'{"name":')
    bus = await stage.bus("a", "runtime")
    await until(lambda: bus.counters.requests >= reads + 3)
    assert runtime._around.fleet.name == "wider"
    assert stage.runs(runtime)
    await admin.publish_durable(subjects.FLEET, msgspec.json.encode(stage.mesh.fleet))
    await until(lambda: runtime._around.fleet.name == "stage")
    await stage.judges_by("stage")
    assert (await client.wait(await client.submit("hello"), timeout_s=PATIENCE_S)).answer == "done"


# --- the inbox ------------------------------------------------------------------------------------


async def test_an_event_of_a_newer_version_waits_for_a_newer_instance_and_not_for_ever(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await stage.client()
    request = client.new_id()
    stage.spoiled.add(request)
    newer = b'{"type":"turn.divined","v":3,"n":0}'
    await stage.forge(newer, "a", request, after=0)
    await stage.runtime(AGENT)

    async def given_back() -> bool:
        info = await (await stage.bus("admin")).api("CONSUMER.INFO.LOG.in-a")
        return int(info["num_redelivered"]) >= 1

    await eventually(given_back)
    assert (await client.wait(await client.submit("hello"), timeout_s=PATIENCE_S)).answer == "done"
    monkeypatch.setattr(runtime_module, "UNKNOWN_S", 0.0)
    letter = await stage.buried("protocol.unknown_event", by="a")
    assert (letter.original, letter.by) == (newer, "a")
    await stage.inbox_drained("a")
