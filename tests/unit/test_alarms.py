"""Calls after one and the same delay: in their order, by one timer, and none that was cancelled."""

import asyncio
from functools import partial

from mesh.tasks import Alarms
from tests.servers import until


async def test_calls_come_in_their_order_and_those_that_were_cancelled_do_not() -> None:
    came: list[int] = []
    alarms = Alarms(lambda: 0.02)
    kept = [alarms.set(partial(came.append, number)) for number in range(6)]
    for number in (0, 3, 5):
        kept[number].cancel()
        kept[number].cancel()
    await until(lambda: len(came) == 3)
    assert came == [1, 2, 4]


async def test_one_timer_serves_all_and_none_is_left_when_all_are_cancelled() -> None:
    loop = asyncio.get_running_loop()
    before = len(loop._scheduled)  # type: ignore[attr-defined]  # the loop's timers
    alarms = Alarms(lambda: 0.02)
    kept = [alarms.set(lambda: None) for _ in range(1000)]
    assert len(loop._scheduled) == before + 1  # type: ignore[attr-defined]
    for alarm in kept:
        alarm.cancel()
    await until(lambda: alarms._timer is None)
    assert not alarms._alarms


async def test_an_alarm_may_cancel_one_that_is_due_with_it_and_set_another() -> None:
    came: list[str] = []
    alarms = Alarms(lambda: 0.0)

    def first() -> None:
        came.append("first")
        second.cancel()
        alarms.set(lambda: came.append("third"))

    alarms.set(first)
    second = alarms.set(lambda: came.append("second"))
    await until(lambda: len(came) == 2)
    assert came == ["first", "third"]


async def test_a_call_that_raises_does_not_silence_those_after_it() -> None:
    came: list[str] = []
    loop = asyncio.get_running_loop()
    alarms = Alarms(lambda: 0.0)

    def broken() -> None:
        raise ValueError("its own")

    raised: list[object] = []
    loop.set_exception_handler(lambda loop, said: raised.append(said["exception"]))
    alarms.set(broken)
    alarms.set(lambda: came.append("after"))
    await until(lambda: bool(came))
    assert [type(each) for each in raised] == [ValueError]
