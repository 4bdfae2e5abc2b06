"""How a puller begins and ends: nothing is taken by one that has ended, and no pull stays behind."""

import asyncio
from pathlib import Path

import pytest

from mesh.bus.connection import connect
from mesh.bus.nats_protocol import Incoming
from mesh.errors import Unreachable
from mesh.local.server import EmbeddedServer
from tests.certain import known
from tests.integration.pulling import Busy, Queue, until_waiting
from tests.servers import eventually, until


async def test_drain_waits_for_what_is_in_hand_and_takes_no_more(queue: Queue) -> None:
    await queue.put(5)
    busy = Busy()
    puller = queue.puller(busy, slots=2)
    await puller.start()
    await until(lambda: len(busy.messages) == 2)
    draining = asyncio.ensure_future(puller.drain())
    await queue.bus.flush()
    assert not draining.done()
    busy.go.set()
    await draining
    assert len(busy.messages) == 2
    assert await queue.left() == 3
    await puller.close()
    rest = Busy()
    rest.go.set()
    successor = queue.puller(rest)
    await successor.start()
    await eventually(queue.empty)
    await successor.close()


async def test_close_cancels_what_is_in_hand(queue: Queue) -> None:
    await queue.put(1)
    busy = Busy()
    puller = queue.puller(busy)
    await puller.start()
    await until(lambda: bool(busy.messages))
    await puller.close()
    await puller.close()
    assert await queue.left() == 1
    assert not [task for task in asyncio.all_tasks() if "Puller" in str(task.get_coro())]


async def test_a_handler_that_is_cancelled_before_it_begins_is_not_waited_for(queue: Queue) -> None:
    busy = Busy()
    puller = queue.puller(busy)
    puller._loop = asyncio.get_running_loop()  # as `start` does; to end a subscription would let it begin
    came = Incoming("mesh", f"{puller._sender}1.1.1.1.0", b"", b"")
    puller._on_delivery(came, known(puller._numbers(came.reply)))
    await puller.close()
    assert not busy.messages
    assert not puller._tasks


async def test_a_closed_puller_leaves_no_pull_behind_that_others_would_starve_by(queue: Queue) -> None:
    first, second = Busy(), Busy()
    second.go.set()
    puller = queue.puller(first, expires_s=60.0)
    await puller.start()
    await until_waiting(queue, 1)
    await puller.close()
    successor = queue.puller(second)
    await successor.start()
    await queue.put(5)
    await until(lambda: len(second.messages) == 5)
    assert first.messages == []
    await successor.close()


async def test_a_puller_is_started_once_and_has_a_slot(queue: Queue) -> None:
    puller = queue.puller(Busy())
    await puller.start()
    with pytest.raises(ValueError, match="before"):
        await puller.start()
    await puller.close()
    with pytest.raises(ValueError, match="slot"):
        queue.puller(Busy(), slots=0)


@pytest.mark.parametrize("how", ["drain", "close"])
async def test_a_puller_that_ends_while_it_starts_takes_nothing(queue: Queue, how: str) -> None:
    """A subscription that outlived its puller would give back what it gets, and get it again at once."""
    await queue.put(3)
    busy = Busy()
    puller = queue.puller(busy)
    starting = asyncio.ensure_future(puller.start())
    await asyncio.sleep(0)  # it has asked the server for its inbox, and waits
    await (puller.drain() if how == "drain" else puller.close())
    await starting
    assert not puller.running
    await until_waiting(queue, 0)
    before = queue.bus.counters.in_messages
    await queue.bus.flush()
    assert queue.bus.counters.in_messages == before
    assert busy.messages == []
    await puller.close()


async def test_a_puller_that_has_ended_does_not_start(queue: Queue) -> None:
    await queue.put(1)
    puller = queue.puller(Busy())
    await puller.close()
    await puller.start()
    assert not puller.running
    await queue.bus.flush()
    assert (await queue.info())["num_waiting"] == 0


async def test_a_puller_that_could_not_start_can_be_started_again(tmp_path: Path) -> None:
    async with EmbeddedServer("", tmp_path) as server, await connect(server.url, name="a") as bus:
        queue = Queue(bus, server)
        await queue.create()
        await queue.put(1)
        await server.kill()
        await until(lambda: not bus.connected)
        busy = Busy()
        busy.go.set()
        puller = queue.puller(busy)
        with pytest.raises(Unreachable):
            await puller.start()
        await server.start()
        await bus.retry_unavailable(puller.start)
        await until(lambda: len(busy.messages) == 1)
        await puller.close()
