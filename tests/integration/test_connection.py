"""A connection: typed errors, no ghost of an old message, and back again after a crash."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from mesh.bus import credentials, request_mux
from mesh.bus.connection import Bus, connect
from mesh.bus.nats_protocol import Incoming, NatsProtocol, Scanner, encode
from mesh.bus.stores import JetStreamSteps, StepTaken
from mesh.errors import (
    ApiError,
    AuthenticationFailed,
    BadAddress,
    Denied,
    Disconnected,
    NoResponders,
    OutcomeUnknown,
    PublishRefused,
    StreamFull,
    TimedOut,
    TooLarge,
    Unreachable,
)
from mesh.local.server import EmbeddedServer
from mesh.testing import EmbeddedBus
from protocol.wire.subjects import prop, step
from tests.integration.test_reading import through_a_proxy
from tests.logs import captured_logs
from tests.servers import PATIENCE_S, ConnectAs, fresh, until


async def test_credentials_that_nobody_knows_are_an_error_even_for_who_would_wait(
    server: EmbeddedBus,
) -> None:
    for wait in (False, True):
        with pytest.raises(AuthenticationFailed):
            await connect(server.url, name="a", seed=credentials.new_key().seed, wait=wait)


async def test_a_connection_without_credentials_is_the_anonymous_client(server: EmbeddedBus) -> None:
    async with await connect(server.url, name="anonymous") as bus:
        assert (await bus.publish_durable(prop("c2", fresh("c2")), b"{}")).stream == "PROP-c2"
        with pytest.raises(Denied):
            await bus.request(prop("c1", fresh()), b"{}")


async def test_a_denied_request_fails_at_once_and_names_the_subject(connect_as: ConnectAs) -> None:
    client = await connect_as("c1")
    with pytest.raises(Denied) as denied:
        await client.request("mesh.conf.fleet", b"{}", timeout_s=PATIENCE_S)
    assert denied.value.subject == "mesh.conf.fleet"
    assert len(client.denials) == 1
    assert (await client.publish_durable(prop("c1", fresh()), b"{}")).seq > 0  # and the connection stands


async def test_a_denied_subscription_is_an_error_and_leaves_nothing_behind(connect_as: ConnectAs) -> None:
    client = await connect_as("c1")
    for _ in range(2):
        with pytest.raises(Denied):
            await client.subscribe("mesh.note.c2.*", print)
    assert not client.denials


async def test_nobody_there_is_known_at_once(connect_as: ConnectAs) -> None:
    guard = await connect_as("guard")
    with pytest.raises(NoResponders):
        await guard.request("$SRV.PING.nobody", timeout_s=PATIENCE_S)


async def test_no_answer_in_time_leaves_the_outcome_unknown(connect_as: ConnectAs) -> None:
    admin = await connect_as("admin")
    await admin.subscribe("silent", lambda message: None)
    with pytest.raises(TimedOut) as timed_out:
        await admin.request("silent", timeout_s=0.05)
    assert isinstance(timed_out.value, OutcomeUnknown)


async def test_what_jetstream_refuses_carries_its_code(connect_as: ConnectAs) -> None:
    agent, request = await connect_as("a"), fresh()
    subject = step("a", request, "t", "0-0")
    await agent.publish_durable(subject, b"first")
    with pytest.raises(PublishRefused) as refused:
        await agent.publish_durable(subject, b"second")
    assert refused.value.err_code == 10077
    admin = await connect_as("admin")
    with pytest.raises(ApiError) as missing:
        await admin.api("STREAM.INFO.NONE")
    assert missing.value.err_code == 10059


async def test_too_many_bytes_are_not_even_sent(connect_as: ConnectAs) -> None:
    admin = await connect_as("admin")
    sent = admin.counters.out_messages
    with pytest.raises(TooLarge):
        await admin.request("x", bytes(2 << 20))
    assert admin.counters.out_messages == sent


async def test_a_message_of_almost_a_megabyte_comes_back_whole(connect_as: ConnectAs) -> None:
    admin = await connect_as("admin")
    got: list[Incoming] = []
    await admin.subscribe("big", got.append)
    body = bytes(range(256)) * 4080
    await admin.publish("big", body, {"A": "ä b", "C": ""})
    await until(lambda: bool(got))
    assert got[0].data == body
    assert got[0].headers == {"A": "ä b", "C": ""}


async def test_a_thousand_requests_at_once_each_get_their_own_answer(connect_as: ConnectAs) -> None:
    asker, answerer = await connect_as("admin"), await connect_as("admin")
    await answerer.subscribe("double", lambda m: answerer.send(m.reply, m.data * 2) and None)
    answers = await asyncio.gather(*(asker.request("double", b"%d." % n) for n in range(1000)))
    assert [answer.data for answer in answers] == [b"%d." % n * 2 for n in range(1000)]


async def test_a_sink_that_raises_harms_nobody_else(connect_as: ConnectAs) -> None:
    admin = await connect_as("admin")
    got: list[Incoming] = []
    await admin.subscribe("both", lambda message: 1 / 0 and None)
    await admin.subscribe("both", got.append)
    await admin.publish("both", b"x")
    await until(lambda: bool(got))
    assert (await admin.api("INFO"))["streams"] > 0


@pytest.mark.parametrize(
    ("subject", "reply", "headers"),
    [
        pytest.param("", "", None, id="no-subject"),
        pytest.param("a b", "", None, id="a-space"),
        pytest.param("a\r\nPUB x 0\r\n", "", None, id="a-line-break"),
        pytest.param("a", "b c", None, id="a-reply-with-a-space"),
        pytest.param("a", "", {"A": "b\r\nC: d"}, id="a-header-value-with-a-line-break"),
        pytest.param("a", "", {"A: b\r\nC": "d"}, id="a-header-name-with-a-line-break"),
        pytest.param("a", "", {"": "d"}, id="an-empty-header-name"),
    ],
)
def test_nothing_that_breaks_the_framing_is_sent(
    subject: str, reply: str, headers: dict[str, str] | None
) -> None:
    with pytest.raises(ValueError, match="not a"):
        encode(subject, b"", reply, headers)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_however_the_bytes_are_cut_the_messages_are_the_same(size: int) -> None:
    """The scanner sees every boundary: within lines, headers, bodies and line ends."""
    wire, got = NatsProtocol(lambda operation, subject: None), []
    wire.sinks[7] = lambda m: got.append((m.subject, m.reply, m.status, m.headers, m.data))
    scanner = Scanner(wire)
    stream = (
        b"MSG a.b 7 5\r\nhello\r\n+OK\r\n"
        b"MSG a.b 7 re.ply 0\r\n\r\n"
        b"MSG other 8 2\r\n\r\n\r\n"
        b"HMSG h 7 22 24\r\nNATS/1.0\r\nA: b:c\r\n\r\n\r\n\r\n\r\n"
        b"HMSG s 7 r 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n"
        b"MSG a 7 4\r\n\r\n\r\n\r\n"
    )
    for start in range(0, len(stream), size):
        scanner.feed(stream[start : start + size])
    assert got == [
        ("a.b", "", 0, {}, b"hello"),
        ("a.b", "re.ply", 0, {}, b""),
        ("h", "", 0, {"A": "b:c"}, b"\r\n"),
        ("s", "r", 404, {}, b""),
        ("a", "", 0, {}, b"\r\n\r\n"),
    ]


# --- crashes --------------------------------------------------------------------------------------


async def plain(server: EmbeddedServer) -> Bus:
    return await connect(server.url, name="a")


async def test_without_a_bus_a_call_fails_at_once_and_is_never_sent_later(tmp_path: Path) -> None:
    async with EmbeddedServer("", tmp_path) as server, await plain(server) as bus:
        await bus.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "file"})
        await server.kill()
        await until(lambda: not bus.connected)
        for call in (bus.publish_durable("s", b"ghost"), bus.publish("s", b"ghost"), bus.flush()):
            with pytest.raises((Unreachable, Disconnected)):
                await call
        assert not bus.send("s", b"ghost")
        await server.start()
        await until(lambda: bus.connected)
        assert (await bus.publish_durable("s", b"real")).seq == 1


async def test_what_is_awaited_when_the_connection_breaks_is_of_unknown_outcome(tmp_path: Path) -> None:
    async with EmbeddedServer("", tmp_path) as server, await plain(server) as bus:
        await bus.subscribe("silent", lambda message: None)
        waiting = [asyncio.ensure_future(bus.request("silent", timeout_s=PATIENCE_S)) for _ in range(3)]
        await bus.flush()
        await server.kill()
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, Disconnected)
        assert bus.counters.disconnects == 1


async def test_after_a_crash_subscriptions_inboxes_and_callbacks_work_again(tmp_path: Path) -> None:
    async with EmbeddedServer("", tmp_path) as server, await plain(server) as bus:
        got: list[Incoming] = []
        back: list[bool] = []
        await bus.subscribe("news", got.append)
        bus.on_back(lambda: back.append(True))
        for _ in range(2):
            await server.kill()
            await until(lambda: not bus.connected)
            await server.start()
            await until(lambda: bus.connected)
            await bus.publish("news", b"x")
            assert (await bus.api("INFO"))["type"]
        await until(lambda: len(got) == 2)
        assert back == [True, True]


@pytest.mark.parametrize(
    "url", ["garbage:xx", "nats://127.0.0.1:notaport", "nats://127.0.0.1:99999", "nats://", "nats://[::1", ""]
)
async def test_what_is_no_url_is_said_at_once_whether_or_not_one_waits(url: str) -> None:
    for wait in (False, True):
        with pytest.raises(BadAddress, match="not a server's URL"):
            await connect(url, name="a", wait=wait)


async def test_an_unreachable_bus_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"at nats://127\.0\.0\.1:1$"):
        await connect("nats://somebody:secret@127.0.0.1:1", name="a")


async def test_who_waits_is_connected_when_the_bus_comes(tmp_path: Path) -> None:
    server = EmbeddedServer("", tmp_path)
    async with server:
        url = server.url
    with pytest.raises(Unreachable):
        await connect(url, name="a")
    waiting = asyncio.ensure_future(connect(url, name="a", wait=True))
    async with server, await waiting as bus:
        assert (await bus.api("INFO"))["type"]


async def test_a_closed_connection_says_so(tmp_path: Path) -> None:
    async with EmbeddedServer("", tmp_path) as server:
        bus = await plain(server)
        await bus.close()
        await bus.close()
        with pytest.raises(Unreachable, match="closed"):
            await bus.request("x")


async def test_who_waits_for_the_server_hears_at_once_that_the_connection_broke(tmp_path: Path) -> None:
    async with through_a_proxy(tmp_path) as (_, proxy, bus):
        proxy.stall()
        settling = asyncio.ensure_future(bus.flush(timeout_s=600))
        await until(lambda: bus._wire._asked != set())
        proxy.cut()
        with pytest.raises(Disconnected):
            await settling
        proxy.flow()
        await bus.wait_connected()
        await bus.flush()


async def test_a_connection_to_a_server_that_hangs_is_closed_all_the_same(tmp_path: Path) -> None:
    async with through_a_proxy(tmp_path) as (_, proxy, bus):
        proxy.stall()
        for _ in range(40):
            assert bus.send("x", bytes(1 << 19))  # more than any socket buffers
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            await bus.close()


async def test_a_server_that_hangs_is_left_for_a_new_connection_with_what_is_unsent(tmp_path: Path) -> None:
    async with through_a_proxy(tmp_path) as (_, proxy, bus):
        proxy.stall()
        for _ in range(40):
            assert bus.send("x", bytes(1 << 19))
        await asyncio.sleep(0)
        await bus._wire._process_op_err(TimeoutError())  # as after pings that nobody answered
        await until(lambda: proxy.connections == 2)
        proxy.flow()
        await bus.wait_connected()
        assert (await bus.api("INFO"))["type"]


async def test_a_subscription_that_the_server_never_confirmed_is_none(tmp_path: Path) -> None:
    async with through_a_proxy(tmp_path) as (_, proxy, bus):
        got: list[Incoming] = []
        proxy.stall()
        subscribing = asyncio.ensure_future(bus.subscribe("news", got.append))
        await until(lambda: bus._wire._asked != set())
        proxy.cut()
        with pytest.raises(Disconnected):
            await subscribing
        proxy.flow()
        await bus.wait_connected()
        await bus.retry_unavailable(lambda: bus.subscribe("news", got.append))
        await bus.publish("news", b"x")
        await bus.flush()
        assert len(got) == 1


async def test_a_full_stream_is_an_error_of_its_own_and_a_trouble_until_there_is_room(tmp_path: Path) -> None:
    async with EmbeddedServer("", tmp_path) as server, await plain(server) as bus:
        config = {"name": "LOG", "subjects": ["mesh.evt.*.*"], "storage": "file", "discard": "new"}
        await bus.api("STREAM.CREATE.LOG", {**config, "max_bytes": 2000})
        stored = 0
        with captured_logs() as lines:
            with contextlib.suppress(StreamFull):
                while True:
                    await bus.publish_durable("mesh.evt.a.r", bytes(500))
                    stored += 1
            with pytest.raises(StreamFull, match="LOG is full") as full:
                await bus.publish_durable("mesh.evt.a.r", bytes(500))
            for _ in range(5):
                with pytest.raises(PublishRefused):
                    await bus.publish_durable("mesh.evt.a.r", bytes(500))
            assert [each.text for each in bus.conditions.reasons()] == ["LOG is full"]
            await bus.api("STREAM.UPDATE.LOG", {**config, "max_bytes": 20_000})
            assert (await bus.publish_durable("mesh.evt.a.r", bytes(500))).seq == stored + 1
            assert bus.conditions.reasons() == []
            await until(lambda: not bus.conditions)
        assert full.value.stream == "LOG"
        assert [line["event"] for line in lines] == ["stream_full", "stream_has_room"]


@pytest.mark.parametrize("words", [request_mux._PER_SUBJECT, "other words than this server uses"])
async def test_a_step_in_a_full_stream_is_known_to_be_there_or_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """The server has one code for a full stream and a subject that is taken."""
    monkeypatch.setattr(request_mux, "_PER_SUBJECT", words)
    async with EmbeddedServer("", tmp_path) as server, await plain(server) as bus:
        config = {
            **{"name": "STEPS-a", "subjects": ["mesh.step.>"], "storage": "file", "discard": "new"},
            **{"discard_new_per_subject": True, "max_msgs_per_subject": 1, "allow_direct": True},
        }
        await bus.api("STREAM.CREATE.STEPS-a", {**config, "max_bytes": 2000})
        steps, n = JetStreamSteps(bus, "a"), 0
        await steps.put("r", "t", "0-0", bytes(500))
        with contextlib.suppress(StreamFull):
            while True:
                n += 1
                await bus.publish_durable(step("a", "r", "t", f"0-{n}"), bytes(500))
        with pytest.raises(StepTaken):
            await steps.put("r", "t", "0-0", bytes(500))
        waiting = asyncio.ensure_future(steps.put("r", "t", f"0-{n}", bytes(500)))
        await until(lambda: bus.conditions.raised > 2)
        assert not waiting.done()
        await bus.api("STREAM.UPDATE.STEPS-a", {**config, "max_bytes": 20_000})
        await waiting
        assert await steps.get("r", "t", f"0-{n}") == bytes(500)


async def test_a_lost_connection_is_said_once_with_what_it_held_up(tmp_path: Path) -> None:
    async with EmbeddedServer("", tmp_path) as server, await plain(server) as bus:
        with captured_logs() as lines:
            await server.kill()
            await until(lambda: bool(bus.conditions.reasons()))
            for _ in range(20):
                with pytest.raises(Unreachable):
                    await bus.publish_durable("mesh.evt.a.r", b"")
            assert [each.code for each in bus.conditions.reasons()] == ["bus_disconnected"]
            await server.start()
            await bus.wait_connected()
            await until(lambda: not bus.conditions.reasons())
            await until(lambda: not bus.conditions)
        assert [line["event"] for line in lines] == ["bus_disconnected", "bus_reconnected"]
        assert lines[1]["held_up"] == 1
        assert lines[1]["lasted_s"] > 0


async def test_what_can_be_done_twice_is_done_as_soon_as_the_bus_is_back(tmp_path: Path) -> None:
    async with EmbeddedServer("", tmp_path) as server, await plain(server) as bus:
        await server.kill()
        asked = asyncio.ensure_future(bus.retry_unavailable(lambda: bus.api("INFO")))
        await until(lambda: not bus.connected)
        await server.start()
        assert (await asked)["type"]
        ended = asyncio.ensure_future(bus.retry_unavailable(lambda: bus.request("nobody.there")))
        await bus.flush()
        await bus.close()
        with pytest.raises((Unreachable, OutcomeUnknown)):
            await ended
