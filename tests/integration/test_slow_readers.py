"""Readers of the log on slow links and busy machines: they take longer, and nothing is asked for twice."""

import asyncio
import os
import signal
from contextlib import aclosing

import pytest

from mesh.bus.event_log import JetStreamLog
from mesh.bus.reader import batch, every, up_to
from mesh.testing import EmbeddedBus
from protocol.wire.subjects import evt_of
from tests.integration.filled_log import LARGE, body, fill, slow_link
from tests.servers import PATIENCE_S, fresh, until

# --- slow links, much at once ---------------------------------------------------------------------


@pytest.mark.parametrize(("count", "size"), [(2000, 3000), (12, 500_000)], ids=["many", "large"])
async def test_a_slow_link_slows_a_reader_down_and_no_more(
    own_server: EmbeddedBus, count: int, size: int
) -> None:
    """What comes slowly is not asked for again and again: nothing would ever be there in time."""
    async with own_server.connected_as("admin") as admin, slow_link(own_server, 1_500_000) as viewer:
        await fill(admin, count, size)
        async with asyncio.timeout(PATIENCE_S):
            seen = [stored.seq async for stored in JetStreamLog(viewer, timeout_s=2.0).follow(tail=False)]
        assert seen == list(range(1, count + 1))
        assert viewer._wire.stats["in_bytes"] < 1.5 * count * size
        assert viewer.counters.disconnects == 0


async def test_a_tail_catches_up_over_a_slow_link(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("admin") as admin, slow_link(own_server, 1_500_000) as viewer:
        seen = list[int]()

        async def follow() -> None:
            async for stored in JetStreamLog(viewer, timeout_s=2.0).follow():
                seen.append(stored.seq)

        following = asyncio.ensure_future(follow())
        await fill(admin, 1)
        await until(lambda: bool(seen))
        await fill(admin, 12, 500_000)
        await until(lambda: len(seen) == 13)
        following.cancel()
        assert seen == list(range(1, 14))


async def test_readers_of_large_events_do_not_break_the_connection_they_share(
    own_server: EmbeddedBus,
) -> None:
    """The server drops a connection to which it owes too much, and with it whatever else is awaited there."""
    async with own_server.connected_as("admin") as admin, own_server.connected_as("audit") as viewer:
        await fill(admin, 60, LARGE)

        async def read() -> list[int]:
            return [stored.seq async for stored in JetStreamLog(viewer).follow(tail=False)]

        assert await asyncio.gather(*(read() for _ in range(4))) == [list(range(1, 61))] * 4
        assert viewer.counters.disconnects == 0


async def test_a_large_batch_ends_early_and_whoever_reads_goes_on(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("guard") as guard, own_server.connected_as("audit") as viewer:
        log, request, head = JetStreamLog(guard), fresh(), 0
        for n in range(22):
            head = await log.append("a", request, body(n, LARGE), after=head)
        subject = evt_of(request)
        one = await batch(viewer, "LOG", subject, 1)
        assert 1 <= len(one) < 22
        assert len(await up_to(viewer, "LOG", subject, 1)) == 22
        assert len(await up_to(viewer, "LOG", subject, 1, 21)) == 21
        assert [kept.seq async for kept in every(viewer, "LOG", subject)] == list(range(1, 23))
        assert len(await JetStreamLog(viewer, leader=False).read(request)) == 22


# --- servers that stop, readers that dawdle -------------------------------------------------------


async def test_a_server_that_stands_still_costs_a_reader_time_alone(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("admin") as admin, own_server.connected_as("audit") as viewer:
        await fill(admin, 20_000)
        seen = list[int]()
        async with aclosing(JetStreamLog(viewer, timeout_s=0.2).follow(tail=False)) as events:
            async for stored in events:
                seen.append(stored.seq)
                if len(seen) == 2000:
                    os.kill(own_server.server.pid, signal.SIGSTOP)
                    asyncio.get_running_loop().call_later(0.7, os.kill, own_server.server.pid, signal.SIGCONT)
        assert seen == list(range(1, 20_001))


async def test_a_reader_may_take_longer_than_an_answer(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("admin") as admin, own_server.connected_as("audit") as viewer:
        await fill(admin, 9000)
        seen = list[int]()
        async with aclosing(JetStreamLog(viewer, timeout_s=0.1).follow(tail=False)) as events:
            async for stored in events:
                seen.append(stored.seq)
                if len(seen) % 3000 == 1:
                    await asyncio.sleep(0.3)  # the reader's own work, longer than an answer may take
        assert seen == list(range(1, 9001))


async def test_a_server_killed_at_any_stage_of_a_read_costs_nothing(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("admin") as admin, own_server.connected_as("audit") as viewer:
        await fill(admin, 10_000, 100)
        for kill_at in (0, 1, 4001):
            seen, restarts = list[int](), list[asyncio.Future[None]]()
            if kill_at == 0:  # before it asks where the log ends
                await own_server.server.kill()
                restarts.append(asyncio.ensure_future(own_server.server.start()))
            try:
                async with aclosing(JetStreamLog(viewer).follow(tail=False)) as events:
                    async for stored in events:
                        seen.append(stored.seq)
                        if len(seen) == kill_at:
                            await own_server.server.kill()
                            restarts.append(asyncio.ensure_future(own_server.server.start()))
            finally:
                await asyncio.gather(*restarts)
            assert seen == list(range(1, 10_001))


# --- silence --------------------------------------------------------------------------------------


async def test_a_tail_asks_seldom_in_silence(own_server: EmbeddedBus) -> None:
    async with own_server.connected_as("admin") as admin, own_server.connected_as("audit") as viewer:
        seen = list[int]()
        loop = asyncio.get_running_loop()

        async def follow() -> None:
            async for stored in JetStreamLog(viewer).follow():
                seen.append(stored.seq)

        following = asyncio.ensure_future(follow())
        await fill(admin, 1)
        await until(lambda: bool(seen))
        began, before = loop.time(), viewer.counters.requests
        await until(lambda: viewer.counters.requests >= before + 11)
        assert loop.time() - began >= 5 * 0.2  # five quick looks at first, and then one every 0.2 s at most
        await fill(admin, 1)
        await until(lambda: len(seen) == 2)
        following.cancel()
