"""Reading what a stream keeps: by direct gets, from its beginning to its end, and who hears of an end."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.reader import StoredMessage, batch, every, first_since, get, get_seq, microseconds
from mesh.bus.roles import GET
from mesh.client import Client
from mesh.errors import ApiError, Denied, Disconnected, LogCutShort, Unreachable
from mesh.ops.watch import Watch
from mesh.testing import EmbeddedBus
from protocol.wire.subjects import card, step
from tests.drill import watch as drill
from tests.integration.filled_log import fill, forgetful
from tests.servers import PATIENCE_S, ConnectAs, fresh, until


async def test_a_senders_headers_do_not_pass_for_the_servers(connect_as: ConnectAs) -> None:
    """Anybody may write into their journal, with any headers; a reader believes the server's alone."""
    agent, viewer, request = await connect_as("a"), await connect_as("audit"), fresh()
    subject = step("a", request, "t", "0-0")
    lies = {
        "Nats-Stream": "STEPS-a",
        "Nats-Subject": step("b", request, "t", "0-0"),
        "Nats-Sequence": "1",
        "Nats-Time-Stamp": "2001-01-01T00:00:00Z",
    }
    seq = (await agent.publish_durable(subject, b"mine", lies)).seq
    one, same = await get(viewer, "STEPS-a", subject), await get_seq(viewer, "STEPS-a", seq)
    assert one is not None
    assert one == same
    assert (one.seq, one.subject, one.data) == (seq, subject, b"mine")
    assert one.at > 1_700_000_000_000_000
    assert await batch(viewer, "STEPS-a", subject, 1) == [one]
    assert [kept async for kept in every(viewer, "STEPS-a", subject)] == [one]


async def test_what_is_not_there_is_none(connect_as: ConnectAs) -> None:
    viewer = await connect_as("audit")
    assert await get(viewer, "CARDS", card("nobody")) is None
    assert await get_seq(viewer, "LOG", 1 << 40) is None
    assert await batch(viewer, "LOG", None, 1 << 40) == []


async def test_a_refusal_is_an_error_and_not_an_empty_answer(connect_as: ConnectAs) -> None:
    viewer = await connect_as("audit")
    with pytest.raises(ApiError) as refused:
        await get_seq(viewer, "LOG", 0)
    assert refused.value.err_code == 408
    with pytest.raises(ApiError):
        await viewer.collect(GET + "LOG", b"no request for a batch")


async def test_the_first_since_a_time(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("admin") as admin, own_server.connected_as("audit") as viewer:
        assert await first_since(viewer, "LOG", "mesh.evt.>", "2000-01-01T00:00:00Z") is None
        await fill(admin, 3)
        stored: list[StoredMessage] = await batch(viewer, "LOG", None, 1)
        for since, wanted in (("2000-01-01T00:00:00Z", stored[0]), (stored[1].stamp, stored[1])):
            assert await first_since(viewer, "LOG", "mesh.evt.>", since) == wanted
        assert await first_since(viewer, "LOG", "mesh.evt.>", "2099-01-01T00:00:00Z") is None


@pytest.mark.parametrize(
    ("stamp", "wanted"),
    [
        ("2026-11-21T22:00:00Z", 0),
        ("2026-11-21T22:00:00.5Z", 500_000),
        ("2026-11-21T22:00:00.000001Z", 1),
        ("2026-11-21T22:00:00.123456789Z", 123_456),
    ],
)
def test_a_stamp_has_any_number_of_decimals(stamp: str, wanted: int) -> None:
    assert microseconds(stamp) - microseconds("2026-11-21T22:00:00Z") == wanted


# --- an end and a beginning that move -------------------------------------------------------------


async def test_without_a_tail_it_ends_where_the_log_ended_though_more_is_appended(
    own_server: EmbeddedBus,
) -> None:
    async with own_server.connected_as("admin") as admin, own_server.connected_as("audit") as viewer:
        await fill(admin, 5000)
        seen = list[int]()
        async with aclosing(JetStreamLog(viewer).follow(tail=False)) as events:
            async for stored in events:
                seen.append(stored.seq)
                if len(seen) % 500 == 1:
                    await fill(admin, 400)
        assert seen == list(range(1, 5001))


@pytest.mark.parametrize("first", [12_001, 19_501, 20_001], ids=["some", "nearly all", "all"])
async def test_what_expires_while_it_is_read_is_left_out_and_nothing_comes_twice(
    own_server: EmbeddedBus, first: int
) -> None:
    async with own_server.connected_as("admin") as admin, own_server.connected_as("audit") as viewer:
        await forgetful(admin)
        await fill(admin, 20_000)
        seen = list[int]()
        async with asyncio.timeout(PATIENCE_S), aclosing(JetStreamLog(viewer).follow(tail=False)) as events:
            async for stored in events:
                seen.append(stored.seq)
                if len(seen) == 1:
                    await fill(admin, 3000)
                    await admin.api("STREAM.PURGE.LOG", {"seq": first})
        assert seen == sorted(set(seen))
        assert seen[0] == 1
        assert [seq for seq in seen if seq >= first] == list(range(first, 20_001))
        gaps = [(one, other) for one, other in itertools.pairwise(seen) if other != one + 1]
        assert [other for _, other in gaps] == ([first] if first <= 20_000 else [])


# --- ends that are none of the log ----------------------------------------------------------------


async def _all(items: AsyncIterator[object]) -> None:
    async for _ in items:
        pass


@pytest.mark.parametrize("tails", [False, True], ids=["reading", "tailing"])
async def test_a_reader_whose_connection_is_closed_says_so(own_server: EmbeddedBus, tails: bool) -> None:
    async with own_server.connected_as("admin") as admin, own_server.connected_as("audit") as viewer:
        await fill(admin, 8000)
        async with asyncio.timeout(PATIENCE_S), aclosing(JetStreamLog(viewer).follow()) as events:
            for _ in range(8000 if tails else 1):
                await anext(events)
            await viewer.close()
            with pytest.raises(Unreachable):
                await _all(events)


async def test_who_may_not_read_hears_it_at_once(server: EmbeddedBus) -> None:
    async with server.connected_as("admin") as admin, server.connected_as("c1") as client:
        await fill(admin, 3)
        async with asyncio.timeout(PATIENCE_S):
            for reading in (JetStreamLog(client).follow(), every(client, "LOG", None)):
                with pytest.raises(Denied):
                    await anext(aiter(reading))
            with pytest.raises(Denied):
                await JetStreamLog(client)._next(1, client.since_s)


async def test_who_may_no_longer_get_hears_it_while_reading(
    server: EmbeddedBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`bounds` may be allowed where the gets are not: that too comes out, and is not tried for ever."""

    async def ends(bus: Bus, stream: str) -> tuple[int, int]:
        return 1, 3

    monkeypatch.setattr("mesh.bus.reader.bounds", ends)
    async with server.connected_as("c1") as client:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(Denied):
                await anext(JetStreamLog(client).follow(tail=False))


@pytest.mark.parametrize("who", ["the log", "dead letters", "drill", "client"])
async def test_whoever_reads_on_hears_that_the_connection_is_closed(server: EmbeddedBus, who: str) -> None:
    async with server.connected_as("audit") as viewer, server.connected_as("c1") as bus:
        watch, client = Watch(viewer, server.url), await Client.on(bus, "c1")
        work: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "the log": lambda: _all(watch.alarms()),
            "dead letters": lambda: _all(watch._dead_lettered(1)),
            "drill": drill.Watch(JetStreamLog(viewer), lambda event: None, decided=False).run,
            "client": lambda: _all(client.follow(fresh(), viewer=viewer)),
        }
        before = viewer.counters.requests
        reading = asyncio.ensure_future(work[who]())
        await until(lambda: viewer.counters.requests > before)  # it has begun
        await viewer.close()
        done, _ = await asyncio.wait({reading}, timeout=PATIENCE_S)
        reading.cancel()
        assert done
        with pytest.raises((Unreachable, Disconnected)):
            await reading


async def test_who_may_not_read_dead_letters_hears_it(server: EmbeddedBus) -> None:
    async with server.connected_as("c1") as client:
        with pytest.raises(Denied):
            async with asyncio.timeout(PATIENCE_S):
                await anext(aiter(Watch(client, server.url)._dead_lettered(1)))


async def test_readers_that_are_cancelled_disturb_nobody(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("admin") as admin, own_server.connected_as("audit") as viewer:
        await fill(admin, 10_000, 200)
        before = asyncio.all_tasks()

        async def read() -> list[int]:
            return [stored.seq async for stored in JetStreamLog(viewer).follow(tail=False)]

        other = asyncio.ensure_future(read())
        for n in range(30):
            cancelled = asyncio.ensure_future(read())
            await asyncio.sleep(n * 0.002)
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
        assert await other == list(range(1, 10_001))
        assert asyncio.all_tasks() == before
        assert not viewer._mux._waiting


# --- another log ----------------------------------------------------------------------------------


@pytest.mark.parametrize("back_first", [False, True], ids=["while it looks", "before it looks"])
async def test_a_log_that_came_back_shorter_is_said_to_be_another_one(
    own_server: EmbeddedBus, back_first: bool
) -> None:
    """Else a tail would be silent until the new log has grown past where the old one was."""
    async with own_server.connected_as("admin") as admin, own_server.connected_as("audit") as viewer:
        await fill(admin, 300)
        async with aclosing(JetStreamLog(viewer).follow()) as events:
            for _ in range(300):
                await anext(events)
            await forgetful(admin)
            await fill(admin, 50)
            await own_server.server.kill()
            await until(lambda: not viewer.connected)
            await own_server.server.start()
            if back_first:
                await until(lambda: viewer.connected)
            with pytest.raises(LogCutShort, match="ends at 50, and was read up to 300"):
                async with asyncio.timeout(PATIENCE_S):
                    await anext(events)


async def test_a_log_that_is_wiped_while_it_is_read_is_not_taken_for_read(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("admin") as admin, own_server.connected_as("audit") as viewer:
        await fill(admin, 9000, 100)
        async with asyncio.timeout(PATIENCE_S), aclosing(JetStreamLog(viewer).follow(tail=False)) as events:
            await anext(events)
            await forgetful(admin)
            with pytest.raises(LogCutShort, match="ends at 0, and was read up to 9000"):
                await _all(events)
