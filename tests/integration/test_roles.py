"""What each role can do with the configuration that ships: its own work, all of it."""

import asyncio
import json
import subprocess
from pathlib import Path

import msgspec
import pytest

from mesh.bus import credentials, roles
from mesh.bus.connection import Bus
from mesh.bus.consumer import Message, Puller
from mesh.bus.event_log import JetStreamLog
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import listing, stream_info
from mesh.bus.roles import CORE, Role, accounts_config, grants, members, server_config
from mesh.bus.streams import GUARD_GROUP, inbox_consumer, offers_to, queue_consumer, stream_table
from mesh.local.server import server_binary
from protocol.wire.ids import AgentName
from protocol.wire.subjects import (
    CONF_CHANGED,
    FREEZE,
    breaker,
    card,
    ctl,
    dead,
    end,
    evt,
    live,
    note,
    partition,
    prop,
    step,
)
from protocol.wire.subjects import FLEET as FLEET_SUBJECT
from tests.servers import FLEET, PATIENCE_S, ConnectAs, fresh, until

GET = "$JS.API.DIRECT.GET."


async def take_one(
    bus: Bus, stream: str, consumer: str, request: str, *, group: str | None = None
) -> Message:
    """Pull until the message of `request` comes, and acknowledge it."""
    found: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    async def on_message(message: Message) -> None:
        await message.ack_sync()
        if message.subject.endswith(request) and not found.done():
            found.set_result(message)

    priority = 0 if group else None
    puller = Puller(bus, stream, consumer, on_message, slots=1, expires_s=2.0, group=group, priority=priority)
    await puller.start()
    try:
        return await asyncio.wait_for(found, PATIENCE_S)
    finally:
        await puller.close()


async def test_a_request_walks_from_client_to_guard_to_agent_and_back(connect_as: ConnectAs) -> None:
    client, guard, agent = [await connect_as(name) for name in ("c1", "guard", "a")]
    log, request, woken = JetStreamLog(guard), fresh(), list[Incoming]()
    await client.subscribe("mesh.note.c1.*", woken.append)

    await client.publish_durable(prop("c1", request), b'{"text":"hi"}')
    queue = queue_consumer(partition(request, FLEET.partitions))
    submitted = await take_one(guard, "PROP-c1", queue, request, group=GUARD_GROUP)
    assert submitted.data == b'{"text":"hi"}'
    opened = await log.append("a", request, b'{"n":0}', after=0, headers={"Mesh-Type": "request.opened"})

    work = await take_one(agent, "LOG", inbox_consumer("a"), request)
    assert (work.stream_seq, work.headers["Mesh-Type"]) == (opened, "request.opened")
    await agent.publish_durable(prop("a", request), b'{"kind":"move"}')
    await take_one(guard, "PROP-a", queue, request, group=GUARD_GROUP)
    await log.append("c1", request, b'{"n":1,"answer":42}', after=opened)

    await until(lambda: any(message.subject == note("c1", request) for message in woken))
    assert all(message.data == b"" for message in woken)  # a note carries no content
    answer = await client.request(GET + "LOG." + evt("c1", request))
    assert json.loads(answer.data)["answer"] == 42


async def test_an_agent_keeps_a_journal_and_shows_itself(connect_as: ConnectAs) -> None:
    agent, guard, request = await connect_as("a"), await connect_as("guard"), fresh()
    subject = step("a", request, "t", "0-0")
    await agent.publish_durable(subject, b"a step")
    assert (await agent.request(GET + "STEPS-a." + subject)).data == b"a step"
    assert (await agent.request(GET + "STEPS-a." + step("a", request, "t", "0-1"))).status == 404
    await guard.publish_durable(end("a", request, "t"), b"ended")
    assert (await agent.request(GET + "ENDS." + end("a", request, "t"))).data == b"ended"
    await agent.publish_durable(card("a"), b"my card")
    assert (await (await connect_as("b")).request(GET + "CARDS." + card("a"))).data == b"my card"
    await agent.publish_durable(dead("a"), b"unreadable")
    assert b'"entry":"a"' in (await agent.request(GET + "CONF." + FLEET_SUBJECT)).data


async def test_what_an_agent_shows_reaches_its_client_and_what_guards_say_reaches_both(
    connect_as: ConnectAs,
) -> None:
    client, agent, guard, request = *[await connect_as(name) for name in ("c1", "a", "guard")], fresh()
    shown, told_client, told_agent = list[Incoming](), list[Incoming](), list[Incoming]()
    await client.subscribe("mesh.live.c1.>", shown.append)
    await client.subscribe("mesh.note.c1.*", told_client.append)
    await agent.subscribe("mesh.note.a.*", told_agent.append)
    await agent.publish(live("c1", request, "a", "t"), b"a token")
    await guard.publish(note("c1", request), b"a notice")
    await guard.publish(note("a", request), b"ended")
    await until(lambda: bool(shown and told_client and told_agent))
    assert [shown[0].data, told_client[0].data, told_agent[0].data] == [b"a token", b"a notice", b"ended"]


async def test_guards_hear_of_each_change_of_conf_and_read_it(connect_as: ConnectAs) -> None:
    admin, first, second = [await connect_as(name) for name in ("admin", "guard", "guard")]
    changed: list[str] = []
    for guard in (first, second):
        await guard.subscribe(f"{CONF_CHANGED}.>", lambda message: changed.append(message.subject))
    await admin.publish_durable("mesh.conf.policy.default", b"rules")
    await until(lambda: changed == [f"{CONF_CHANGED}.policy.default"] * 2)
    assert (await second.request(GET + "CONF.mesh.conf.policy.default")).data == b"rules"
    await first.publish_durable(FREEZE, b"{}")
    seq = (await first.publish_durable(breaker("a"), b"open")).seq
    after = {"Nats-Expected-Last-Subject-Sequence": str(seq)}
    await second.publish_durable(breaker("a"), b"closed", after)
    await until(lambda: len(changed) == 8)


@pytest.mark.parametrize("name", ["audit", "op"])
async def test_viewers_and_operators_read_everything(connect_as: ConnectAs, name: str) -> None:
    viewer, guard, agent, request = (
        await connect_as(name),
        await connect_as("guard"),
        await connect_as("a"),
        fresh(),
    )
    log = JetStreamLog(guard)
    first = await log.append("a", request, b'{"n":0}', after=0)
    await log.append("_", request, b'{"n":1}', after=first)
    await agent.publish_durable(step("a", request, "t", "0-0"), b"a step")
    await agent.publish_durable(card("a"), b"card")
    await agent.publish_durable(dead("a"), b"dead letter")
    assert len(await JetStreamLog(viewer).read(request)) == 2
    assert first in [stored.seq async for stored in JetStreamLog(viewer).follow(tail=False)]
    for stream, subject, wanted in (
        ("STEPS-a", f"mesh.step.*.{request}.>", b"a step"),
        ("CARDS", "mesh.card.*", b"card"),
        ("DEAD", "mesh.dead.*", b"dead letter"),
        ("CONF", "mesh.conf.fleet", b"entry"),
    ):
        body = msgspec.json.encode({"seq": 1, "batch": 100, "next_by_subj": subject})
        assert any(wanted in message.data for message in await viewer.collect(GET + stream, body))
    listed = await listing(viewer)
    assert listed.streams.keys() >= stream_table(FLEET).keys()
    assert (await stream_info(viewer, "LOG"))["state"]["last_seq"] >= first
    assert not viewer.denials
    assert (await viewer.api("CONSUMER.INFO.LOG.in-a"))["name"] == "in-a"


async def test_operators_control_and_submit_and_read_their_answer(connect_as: ConnectAs) -> None:
    operator, guard, request = await connect_as("op"), await connect_as("guard"), fresh("op")
    await operator.publish_durable(prop("op", request), b"{}")
    await operator.publish_durable(ctl("op", request), b"{}")
    await operator.publish_durable(ctl("op", "_"), b"{}")
    control = await take_one(
        guard, "CTL", queue_consumer(partition(request, FLEET.partitions)), request, group=GUARD_GROUP
    )
    assert control.subject == f"mesh.ctl.{partition(request, FLEET.partitions)}.op.{request}"
    await JetStreamLog(guard).append("op", request, b'{"n":0}', after=0)
    assert (await operator.request(GET + "LOG." + evt("op", request))).data == b'{"n":0}'


async def test_any_number_of_callers_share_a_name(connect_as: ConnectAs) -> None:
    guard, callers = await connect_as("guard"), [await connect_as("c1") for _ in range(10)]
    requests = [fresh() for _ in callers]
    await asyncio.gather(*(JetStreamLog(guard).append("c1", r, b'{"n":0}', after=0) for r in requests))
    answers = await asyncio.gather(
        *(c.request(GET + "LOG." + evt("c1", r)) for c, r in zip(callers, requests, strict=True))
    )
    assert [answer.headers["Nats-Subject"] for answer in answers] == [evt("c1", r) for r in requests]


# --- the table itself -----------------------------------------------------------------------------


def publics() -> dict[str, str]:
    return {name: credentials.new_key().public for name in roles.names(FLEET)}


def test_nobody_outside_core_may_name_what_is_anothers() -> None:
    for role, name in members(FLEET):
        granted = grants(role, name, offers_to(FLEET, name))
        if granted.account == CORE or granted.publish is None or granted.subscribe is None:
            continue
        for subject in granted.publish:
            assert not subject.startswith(("mesh.evt", "mesh.end", "mesh.conf", "mesh.timer", "mesh.note"))
            if subject.startswith(("mesh.prop", "mesh.ctl", "mesh.step", "mesh.card", "mesh.dead")):
                assert subject.split(".")[2] == name
        assert f"_I.{name}.>" in granted.subscribe
        assert not {">", "_I.>", "_R_.>", "mesh.>"} & set(granted.subscribe)


def test_the_generated_configuration_has_no_allow_responses_and_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    text = server_config(accounts_config(FLEET, publics(), anonymous="c1"), store=tmp_path / "js")
    assert "allow_responses" not in text
    path.write_text(text)
    subprocess.run([server_binary(), "-t", "-c", path], check=True, capture_output=True)


NASTY = 'a "quoted" \\\\ bäck $HOME # x'


def test_whatever_a_directory_is_called_the_configuration_names_just_it(tmp_path: Path) -> None:
    store, path = tmp_path / NASTY, tmp_path / "nats.conf"
    path.write_text(server_config(accounts_config(FLEET, publics()), store=store, ports_dir=store))
    subprocess.run([server_binary(), "-t", "-c", path], check=True, capture_output=True)
    with pytest.raises(ValueError, match="cannot hold"):
        server_config(accounts_config(FLEET, publics()), store=tmp_path / 'x"\n}\n')


def test_nothing_but_a_users_public_key_gets_into_the_configuration() -> None:
    forged = publics()["a"] + " }, { nkey: " + credentials.new_key().public
    for key in (forged, "", credentials.new_key().seed, publics()["a"].lower()):
        with pytest.raises(ValueError, match="not a user's public key"):
            accounts_config(FLEET, {**publics(), "a": key})


def test_anonymous_must_be_a_client_and_everybody_needs_a_key() -> None:
    with pytest.raises(ValueError, match="client of the fleet"):
        accounts_config(FLEET, publics(), anonymous="op")
    missing = publics()
    del missing["a"]
    with pytest.raises(ValueError, match="'a'"):
        accounts_config(FLEET, missing)


@pytest.mark.parametrize("name", ["a.b", "*", ">", "human", "", "A", "a" * 25])
def test_a_name_that_is_none_gets_no_grants(name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        grants(Role.AGENT, name)


def test_a_name_has_one_role() -> None:
    clash = msgspec.structs.replace(FLEET, viewers=(AgentName("guard"),))
    with pytest.raises(ValueError, match="guard"):
        tuple(members(clash))


def test_a_seed_file_is_private_and_never_replaced(tmp_path: Path) -> None:
    key = credentials.new_key()
    path = credentials.write_key(tmp_path / "keys", "a", key)
    assert path.stat().st_mode & 0o777 == 0o600
    assert credentials.read_key(path) == key
    assert key.seed not in repr(key)
    with pytest.raises(FileExistsError):
        credentials.write_key(tmp_path / "keys", "a", credentials.new_key())
    path.write_text("no seed")
    with pytest.raises(ValueError, match="seed"):
        credentials.read_key(path)
