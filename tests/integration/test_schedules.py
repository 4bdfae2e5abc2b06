"""The alarm clock: once, at its time, moved by compare-and-set, over a crash."""

import time

import pytest

from mesh.bus.connection import Bus
from mesh.bus.consumer import Message, Puller
from mesh.bus.stores import arm_schedule, due_of, rfc3339
from mesh.bus.stores import current_schedule as standing
from mesh.bus.streams import GUARD_GROUP, queue_consumer
from mesh.errors import Denied, SequenceConflict
from mesh.testing import EmbeddedBus
from protocol.wire.subjects import parse_fire, partition
from tests.servers import FLEET, ConnectAs, eventually, fresh, until

HOUR_US = 3_600_000_000


def now_us() -> int:
    return time.time_ns() // 1000


async def arm(guard: Bus, request: str, at_us: int, *, after: int | None = None) -> int:
    return await arm_schedule(guard, request, at_us, FLEET.partitions, after=after)


class Alarms:
    """Pulls what fires for one request."""

    def __init__(self, guard: Bus, request: str) -> None:
        self.fired: list[tuple[str, int]] = []
        self._puller = Puller(
            guard,
            "TIMER",
            queue_consumer(partition(request, FLEET.partitions)),
            self._on_fire,
            slots=4,
            expires_s=2.0,
            group=GUARD_GROUP,
            priority=0,
        )

    async def _on_fire(self, message: Message) -> None:
        self.fired.append((parse_fire(message.subject), due_of(message.data)))
        await message.ack_sync()

    async def __aenter__(self) -> "Alarms":
        await self._puller.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._puller.close()


async def test_it_goes_off_once_at_its_time_and_is_gone_then(connect_as: ConnectAs) -> None:
    guard, request = await connect_as("guard"), fresh()
    async with Alarms(guard, request) as alarms:
        due = now_us() + 300_000
        seq = await arm(guard, request, due, after=0)
        assert await standing(guard, request) == (seq, due)
        await until(lambda: bool(alarms.fired))
        assert now_us() >= due
        assert alarms.fired == [(request, due)]
        assert await standing(guard, request) is None


async def test_after_it_went_off_the_next_one_is_armed_after_zero(connect_as: ConnectAs) -> None:
    guard, request = await connect_as("guard"), fresh()
    async with Alarms(guard, request) as alarms:
        first = await arm(guard, request, now_us() - HOUR_US, after=0)
        await until(lambda: bool(alarms.fired))
        with pytest.raises(SequenceConflict):
            await arm(guard, request, now_us(), after=first)
        await arm(guard, request, now_us(), after=0)
        await until(lambda: len(alarms.fired) == 2)


async def test_moved_to_earlier_it_goes_off_once_at_the_earlier_time(connect_as: ConnectAs) -> None:
    guard, request = await connect_as("guard"), fresh()
    async with Alarms(guard, request) as alarms:
        far = await arm(guard, request, now_us() + HOUR_US, after=0)
        soon = now_us() + 200_000
        assert await arm(guard, request, soon, after=far) > far
        await until(lambda: bool(alarms.fired))
        assert alarms.fired == [(request, soon)]
        assert await standing(guard, request) is None


async def test_of_two_guards_that_arm_at_once_one_is_told(connect_as: ConnectAs) -> None:
    guard, request = await connect_as("guard"), fresh()
    seq = await arm(guard, request, now_us() + HOUR_US, after=0)
    for stale in (0, seq - 1):
        with pytest.raises(SequenceConflict):
            await arm(guard, request, now_us() + HOUR_US // 2, after=stale)
    assert await standing(guard, request) is not None
    assert await arm(guard, request, now_us() + HOUR_US) > seq  # None replaces whatever stands


async def test_it_survives_a_crash_of_the_server(own_server: EmbeddedBus) -> None:
    late, soon, request_due_while_down, request_later = (
        now_us() + HOUR_US,
        now_us() + 50_000,
        fresh(),
        fresh(),
    )
    async with own_server.connected_as("guard") as guard:
        await arm(guard, request_due_while_down, soon, after=0)
        seq = await arm(guard, request_later, late, after=0)
        await own_server.server.kill()
        await until(lambda: now_us() > soon)
        await own_server.server.start()
        await until(lambda: guard.connected)
        async with Alarms(guard, request_due_while_down) as alarms:
            await until(lambda: bool(alarms.fired))
            assert alarms.fired == [(request_due_while_down, soon)]
        assert await standing(guard, request_later) == (seq, late)


async def test_only_guards_arm(connect_as: ConnectAs) -> None:
    for name in ("a", "c1", "op", "audit"):
        with pytest.raises(Denied):
            await arm(await connect_as(name), fresh(), now_us(), after=0)


async def test_an_alarm_that_nobody_takes_comes_again(connect_as: ConnectAs) -> None:
    guard, admin, request = await connect_as("guard"), await connect_as("admin"), fresh()
    await arm(guard, request, now_us(), after=0)

    async def stored() -> bool:
        info = await admin.api("STREAM.INFO.TIMER", {"subjects_filter": f"mesh.timer.fire.*.{request}"})
        return bool(info["state"].get("subjects"))

    await eventually(stored)
    async with Alarms(guard, request) as alarms:
        await until(lambda: bool(alarms.fired))


def test_times_are_written_to_the_microsecond() -> None:
    assert rfc3339(1_700_000_000_000_001) == "2023-11-14T22:13:20.000001Z"
