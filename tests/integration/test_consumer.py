"""Pulling: never more than the slots, nothing lost when a process dies or freezes."""

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from mesh.bus.connection import connect
from mesh.bus.consumer import Message, Puller
from mesh.errors import TimedOut
from mesh.local.server import EmbeddedServer
from tests.integration.pulling import EXPIRES_S, LEASE_S, NS, Busy, Queue, until_waiting
from tests.logs import captured_logs
from tests.servers import eventually, until


@pytest.mark.parametrize("slots", [1, 3, 64])
async def test_never_more_than_the_slots_are_in_hand_or_requested(queue: Queue, slots: int) -> None:
    await queue.consumer(ack_wait=3600 * NS)  # each message comes once, however busy the machine is
    await queue.put(200)
    busy = Busy()
    puller = queue.puller(busy, slots=slots)
    await puller.start()
    await until(lambda: len(busy.messages) == slots)
    assert puller.in_hand == slots
    assert (await queue.info())["num_ack_pending"] == slots  # the server knows of no more either
    busy.go.set()
    await eventually(queue.empty)
    assert busy.most <= slots
    assert sorted(int(message.data) for message in busy.messages) == list(range(200))
    await until(lambda: puller.in_hand == 0)
    await puller.close()


async def test_without_a_backlog_more_are_in_hand_than_with_one(queue: Queue) -> None:
    await queue.consumer(ack_wait=3600 * NS)
    await queue.put(40)
    busy = Busy()
    puller = queue.puller(busy, most=16)
    await puller.start()
    await until(lambda: len(busy.messages) == 4)
    assert puller.requested == 0, "36 wait"
    for message in busy.messages[:4]:
        message.done()
    await until(lambda: len(busy.messages) == 8)
    assert (puller.in_hand, puller.requested) == (4, 0), "32 wait"
    busy.go.set()
    await eventually(queue.empty)
    await until(lambda: puller.in_hand == 0)
    busy.go.clear()
    await queue.put(20)
    await until(lambda: puller.in_hand == 16)
    assert puller.requested == 0
    assert (await queue.info())["num_ack_pending"] == 16  # the server knows of no more either
    busy.go.set()
    await eventually(queue.empty)
    assert len(busy.messages) == 60
    await puller.close()


async def test_slots_that_get_free_one_after_the_other_are_filled_by_one_request(queue: Queue) -> None:
    await queue.put(20)
    busy = Busy()
    puller = queue.puller(busy)
    await puller.start()
    await until(lambda: len(busy.messages) == 4)
    busy.messages[0].done()
    assert puller.requested == 0, "one of four is not worth a request"
    busy.messages[1].done()
    assert puller.requested == 2
    await until(lambda: len(busy.messages) == 6)
    busy.messages[2].done()
    await until(lambda: len(busy.messages) == 7)  # a short while later one is requested all the same
    busy.go.set()
    await eventually(queue.empty)
    await puller.close()


async def test_a_message_knows_what_it_is(queue: Queue) -> None:
    before_us = time.time_ns() // 1000
    busy = Busy()
    await queue.bus.publish_durable(f"{queue.stream}.x", b"body", {"A": "b"})
    puller = queue.puller(busy)
    await puller.start()
    await until(lambda: bool(busy.messages))
    message = busy.messages[0]
    assert (message.subject, message.data, message.headers) == (f"{queue.stream}.x", b"body", {"A": "b"})
    assert (message.stream_seq, message.delivered) == (1, 1)
    assert before_us <= message.stored_us <= time.time_ns() // 1000
    await puller.close()


async def test_an_idle_puller_goes_on_when_its_pulls_run_out(queue: Queue) -> None:
    busy = Busy()
    busy.go.set()
    puller = queue.puller(busy, expires_s=0.1)
    await puller.start()
    for count in range(1, 4):
        started = queue.bus.counters.in_messages
        await until(lambda seen=started: queue.bus.counters.in_messages > seen + 3)  # type: ignore[misc]
        await queue.put(1)
        await until(lambda wanted=count: len(busy.messages) == wanted)  # type: ignore[misc]
    assert puller.requested <= puller.slots
    await puller.close()


async def test_an_idle_pull_asks_for_one_message_and_what_comes_with_it_follows(queue: Queue) -> None:
    """A process that freezes while it is idle then loses one message for a lease, however long the pull."""
    await queue.consumer(ack_wait=3600 * NS)
    busy = Busy()
    puller = queue.puller(busy, idle_s=lambda: 3600.0)
    await puller.start()
    await until_waiting(queue, 1)
    assert puller.requested == 1
    for taken in (10, 20):
        busy.go.clear()
        await queue.put(10)
        await until(lambda: puller.in_hand == puller.slots == len(busy.messages) - taken + 10)  # noqa: B023
        busy.go.set()
        await eventually(queue.empty)
        assert len(busy.messages) == taken
        await until(lambda: (puller.in_hand, puller.requested) == (0, 1))  # all shorter pulls have ended
        await until_waiting(queue, 1)
    await puller.close()


async def test_a_pull_beside_work_in_hand_ends_before_its_lease(queue: Queue) -> None:
    """What a frozen process had in hand would otherwise be given back to it."""
    await queue.consumer(ack_wait=3600 * NS)  # here it comes once, so that pulls alone are counted
    busy = Busy()
    puller = queue.puller(busy, idle_s=lambda: 3600.0)
    await puller.start()
    await queue.put(1)
    await until(lambda: puller.in_hand == 1)
    before = queue.bus.counters.in_messages
    await until(lambda: queue.bus.counters.in_messages > before + 2)  # pulls end, one after the other
    assert puller.in_hand == 1
    busy.go.set()
    await puller.close()


async def test_done_frees_the_slot_before_the_handler_ends(queue: Queue) -> None:
    await queue.put(2)
    messages: list[Message] = []
    go = asyncio.Event()

    async def handler(message: Message) -> None:
        messages.append(message)
        message.done()
        message.done()
        await go.wait()

    puller = queue.puller(handler, slots=1)
    await puller.start()
    await until(lambda: len(messages) == 2)
    assert puller.in_hand == 0
    await puller.close()


async def test_a_handler_that_raises_is_logged_and_its_message_comes_again(
    queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    await queue.put(3)
    seen: list[tuple[bytes, int]] = []

    async def handler(message: Message) -> None:
        seen.append((message.data, message.delivered))
        if message.delivered == 1:
            raise RuntimeError("a bug in the handler")
        await message.ack_sync()

    puller = queue.puller(handler, slots=1)
    await puller.start()
    await eventually(queue.empty)
    assert {delivered for _, delivered in seen} == {1, 2}
    assert "a bug in the handler" in capsys.readouterr().out
    await puller.close()


async def test_nak_term_and_progress_do_what_they_say(queue: Queue) -> None:
    await queue.put(1)
    delivered: list[int] = []

    async def handler(message: Message) -> None:
        delivered.append(message.delivered)
        match message.delivered:
            case 1:
                message.nak()
            case 2:
                message.nak(0.1)
            case 3:
                until_s = asyncio.get_running_loop().time() + 2 * LEASE_S
                while asyncio.get_running_loop().time() < until_s:
                    message.in_progress()
                    await asyncio.sleep(LEASE_S / 4)
                message.term("had enough of it")

    puller = queue.puller(handler)
    await puller.start()
    await eventually(queue.empty)
    assert delivered == [1, 2, 3]
    await puller.close()


async def test_a_paused_puller_takes_nothing_and_goes_on_when_resumed(queue: Queue) -> None:
    busy = Busy()
    busy.go.set()
    puller = queue.puller(busy)
    await puller.start()
    await queue.bus.flush()
    puller.pause()
    await queue.put(3)  # its pull still waits at the server, and brings them here all the same
    await until_waiting(queue, 0)
    assert busy.messages == []
    puller.resume()
    await eventually(queue.empty)
    assert len(busy.messages) == 3
    await puller.close()


async def test_what_a_handler_could_not_do_for_trouble_with_the_bus_comes_again_quietly(queue: Queue) -> None:
    await queue.put(1)
    deliveries: list[int] = []

    async def troubled(message: Message) -> None:
        deliveries.append(message.delivered)
        if message.delivered == 1:
            raise TimedOut("nobody knows")
        message.ack()

    puller = queue.puller(troubled)
    with captured_logs() as lines:
        await puller.start()
        await eventually(queue.empty)
    assert deliveries == [1, 2]
    assert [line["event"] for line in lines if line["log_level"] != "debug"] == []
    await puller.close()


async def test_pulls_that_are_refused_are_one_trouble_however_many_pullers_meet_it(queue: Queue) -> None:
    puller, another = queue.puller(Busy()), queue.puller(Busy())
    with captured_logs() as lines:
        await queue.bus.api(f"CONSUMER.DELETE.{queue.stream}.w")
        await puller.start()
        await another.start()
        await until(lambda: queue.bus.conditions.raised > 6)
        assert [each.code for each in queue.bus.conditions.reasons()] == ["pull_refused"]
        await queue.consumer()
        await until(lambda: not queue.bus.conditions.reasons())
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["pull_refused"]
    await puller.close()
    await another.close()


async def test_that_pulls_are_taken_again_is_seen_long_before_an_idle_one_ends(queue: Queue) -> None:
    taking = Busy()
    puller = queue.puller(taking, expires_s=3600.0)
    await queue.bus.api(f"CONSUMER.DELETE.{queue.stream}.w")
    await puller.start()
    await until(lambda: bool(queue.bus.conditions.reasons()))
    await queue.consumer()
    await until(lambda: not queue.bus.conditions.reasons())
    await queue.put(1)
    await until(lambda: len(taking.messages) == 1)
    await puller.close()


# --- processes that die and freeze ----------------------------------------------------------------


async def test_what_a_killed_process_had_in_hand_comes_to_another(queue: Queue) -> None:
    async with queue.process(hold=True) as doomed:
        await doomed.line("ready")
        await queue.put(3)
        for _ in range(3):
            await doomed.line("got")
        busy = Busy()
        busy.go.set()
        puller = queue.puller(busy)
        await puller.start()
        doomed.signal(signal.SIGKILL)
        await eventually(queue.empty)
    assert sorted(message.stream_seq for message in busy.messages) == [1, 2, 3]
    assert {message.delivered for message in busy.messages} == {2}
    await puller.close()


async def test_what_a_frozen_process_holds_and_asked_for_comes_to_another(queue: Queue) -> None:
    async with queue.process(hold=True) as frozen:
        await frozen.line("ready")
        await queue.put(1)
        await frozen.line("got")
        frozen.signal(signal.SIGSTOP)
        busy = Busy()
        busy.go.set()
        puller = queue.puller(busy)
        await puller.start()
        await queue.put(6)  # some of them go to the pull of the frozen one, which is still open
        await eventually(queue.empty)
        assert len({message.stream_seq for message in busy.messages}) == 7
        await puller.close()


@pytest.mark.parametrize("how", ["crash", "consumer-deleted"])
async def test_a_puller_goes_on_over_a_broken_bus(tmp_path: Path, how: str) -> None:
    async with EmbeddedServer("", tmp_path) as server, await connect(server.url, name="a") as bus:
        queue = Queue(bus, server)
        await queue.create()
        busy = Busy()
        puller = queue.puller(busy, expires_s=30.0)
        await puller.start()
        await queue.put(2)
        await until(lambda: len(busy.messages) == 2)
        if how == "crash":
            await server.kill()
            await until(lambda: not bus.connected)
            await server.start()
            await until(lambda: bus.connected)
        else:
            await bus.api(f"CONSUMER.DELETE.{queue.stream}.w")
            await eventually(queue.recreated)
        busy.go.set()
        await queue.put(3)
        await eventually(queue.empty)
        assert len({message.stream_seq for message in busy.messages}) == 5
        await puller.close()


async def test_with_priorities_the_first_is_served_and_the_second_when_it_is_gone(
    bare: EmbeddedServer,
) -> None:
    async with await connect(bare.url, name="a") as one, await connect(bare.url, name="b") as two:
        queue = Queue(one, bare)
        await queue.create(priority_policy="prioritized", priority_groups=["guard"])
        first, second = Busy(), Busy()
        first.go.set()
        second.go.set()
        options: dict[str, Any] = {"slots": 8, "expires_s": EXPIRES_S, "group": "guard"}
        pullers = [
            Puller(two, queue.stream, "w", second, **options, priority=5),
            Puller(one, queue.stream, "w", first, **options, priority=0),
        ]
        for puller in pullers:
            await puller.start()
        await one.flush()
        await two.flush()
        await queue.bus.publish_durable(f"{queue.stream}.x", b"")
        await eventually(queue.empty)
        assert (len(first.messages), len(second.messages)) == (1, 0)
        await pullers[1].close()
        await eventually(lambda: _served_by(queue, second))
        await pullers[0].close()


async def _served_by(queue: Queue, handler: Busy) -> bool:
    seen = len(handler.messages)
    await queue.put(1)
    await eventually(queue.empty)
    return len(handler.messages) > seen
