"""The log when the server crashes, stops answering, or fills up."""

import asyncio
from contextlib import aclosing

import msgspec
import pytest

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.provision import provision
from mesh.bus.reader import StoredMessage
from mesh.bus.streams import stream_table
from mesh.errors import OutcomeUnknown, PublishRefused, SequenceConflict, Unreachable
from mesh.testing import EmbeddedBus
from tests.certain import known
from tests.servers import FLEET, eventually, fresh, until


def body(n: int, padding: int = 0) -> bytes:
    return msgspec.json.encode({"n": n, "x": "x" * padding})


async def test_after_an_unknown_outcome_the_head_tells(own_server: EmbeddedBus) -> None:
    """Appends run while the server is killed: each is stored, or not, and reading says which."""
    requests = [fresh() for _ in range(200)]
    async with own_server.connected_as("guard") as guard:
        log = JetStreamLog(guard, timeout_s=2.0)
        await log.append("a", fresh(), body(0), after=0)
        appends = [asyncio.ensure_future(log.append("a", request, body(0), after=0)) for request in requests]
        await asyncio.wait(appends, return_when=asyncio.FIRST_COMPLETED)
        await own_server.server.kill()
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        await until(lambda: not guard.connected)
        await own_server.server.start()
        await until(lambda: guard.connected)
        for request, outcome in zip(requests, outcomes, strict=True):
            head = await log.head(request)
            if isinstance(outcome, int):
                assert known(head).seq == outcome  # what was acknowledged is there
            else:
                assert isinstance(outcome, OutcomeUnknown | Unreachable)
            if head is None:
                assert await log.append("a", request, body(0), after=0)
            else:
                with pytest.raises(SequenceConflict):
                    await log.append("a", request, body(0), after=0)


async def test_a_reader_that_follows_misses_nothing_over_crashes(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("guard") as guard, own_server.connected_as("audit") as viewer:
        log, seen = JetStreamLog(guard), list[StoredMessage]()

        async def follow() -> None:
            async for stored in JetStreamLog(viewer).follow():
                seen.append(stored)

        following = asyncio.ensure_future(follow())
        for crash in range(3):
            await asyncio.gather(*(log.append("a", fresh(), body(0), after=0) for _ in range(300)))
            await until(lambda wanted=300 * crash + 100: len(seen) >= wanted)  # type: ignore[misc]
            await own_server.server.kill()
            await until(lambda: not guard.connected and not viewer.connected)
            await own_server.server.start()
            await until(lambda: guard.connected and viewer.connected)
        await until(lambda: len(seen) >= 900)
        following.cancel()
        assert [stored.seq for stored in seen] == list(range(1, 901))


async def test_readers_under_one_name_are_not_in_each_others_way(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("guard") as guard, own_server.connected_as("audit") as viewer:
        log = JetStreamLog(guard)
        await asyncio.gather(*(log.append("a", fresh(), body(0), after=0) for _ in range(2000)))

        async def read(bus: Bus, wanted: int | None = None) -> list[int]:
            seen = []
            async with aclosing(JetStreamLog(bus).follow(tail=wanted is not None)) as events:
                async for stored in events:
                    seen.append(stored.seq)
                    if len(seen) == wanted:
                        break
            return seen

        async with own_server.connected_as("audit") as other:
            tails = [asyncio.ensure_future(read(bus, 2001)) for bus in (viewer, other)]
            reads = await asyncio.gather(*(read(bus) for bus in (viewer, other) * 3))
            await log.append("a", fresh(), body(0), after=0)
            assert await asyncio.gather(*tails) == [list(range(1, 2002))] * 2
        assert reads == [list(range(1, 2001))] * 6


async def test_large_events_are_followed_in_order_and_whole(own_server: EmbeddedBus) -> None:
    """Batches end early then: what was asked for beyond is asked for again, and nothing comes twice."""
    async with own_server.connected_as("guard") as guard, own_server.connected_as("audit") as viewer:
        log = JetStreamLog(guard)
        sizes = [900_000 if n % 3 else 10 for n in range(60)]
        await asyncio.gather(
            *(log.append("a", fresh(), body(n, size), after=0) for n, size in enumerate(sizes))
        )
        small = 3000
        await asyncio.gather(*(log.append("a", fresh(), body(n), after=0) for n in range(small)))
        seen = [stored async for stored in JetStreamLog(viewer).follow(tail=False)]
        assert [stored.seq for stored in seen] == list(range(1, len(sizes) + small + 1))
        assert sorted(len(stored.data) for stored in seen[: len(sizes)])[0] < 900_000


async def test_a_reader_that_is_left_asks_for_nothing_more(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("guard") as guard, own_server.connected_as("audit") as viewer:
        log = JetStreamLog(guard)
        await asyncio.gather(*(log.append("a", fresh(), body(0), after=0) for _ in range(5000)))
        before, asked = asyncio.all_tasks(), viewer.counters.requests
        async with aclosing(JetStreamLog(viewer).follow()) as events:
            assert (await anext(events)).seq == 1
            assert viewer.counters.requests > asked + 2, "it reads ahead: where the log ends, and batches"
        assert asyncio.all_tasks() == before


async def test_what_has_expired_is_no_gap(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("admin") as admin, own_server.connected_as("audit") as viewer:
        await admin.api("STREAM.DELETE.LOG")
        table = stream_table(msgspec.structs.replace(FLEET, log_max_age_s=0.3))
        await admin.api("STREAM.CREATE.LOG", table["LOG"])
        log = JetStreamLog(admin)
        for _ in range(3):
            await log.append("a", fresh(), body(0), after=0)

        async def expired() -> bool:
            return bool((await admin.api("STREAM.INFO.LOG"))["state"]["first_seq"] > 3)

        await eventually(expired)
        last = await log.append("a", fresh(), body(0), after=0)
        seen = [stored.seq async for stored in JetStreamLog(viewer).follow(tail=False)]
        assert seen in ([last], [])  # it may have expired meanwhile


async def test_a_full_log_refuses_and_forgets_nothing(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("admin") as admin, own_server.connected_as("guard") as guard:
        config = (await admin.api("STREAM.INFO.LOG"))["config"]
        await admin.api("STREAM.UPDATE.LOG", {**config, "max_bytes": 200_000})
        log, request, head = JetStreamLog(guard), fresh(), 0
        for n in range(19):
            head = await log.append("a", request, body(n, 10_000), after=head)
        with pytest.raises(PublishRefused) as full:
            await log.append("a", request, body(19, 10_000), after=head)
        assert full.value.err_code == 10077
        events = await log.read(request)
        assert len(events) == 19
        assert events[-1].seq == head
        assert [change.what for change in await provision(admin, FLEET)] == ["stream LOG"]  # widens it again
        assert await log.append("a", request, body(len(events)), after=head)


async def test_a_long_history_of_large_events_is_read_whole(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("guard") as guard:
        log, request, head = JetStreamLog(guard), fresh(), 0
        for n in range(150):
            head = await log.append("a", request, body(n, 500_000), after=head)
        events = await log.read(request)
        assert len(events) == 150
        assert events[-1].seq == head
