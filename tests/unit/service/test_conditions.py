"""A condition is logged once when it begins and once when it ends."""

import asyncio
from typing import Any

from mesh.service.conditions import Conditions, Kind
from tests.logs import captured_logs
from tests.servers import until

FULL = Kind("full", "has_room", "{} is full", settle_s=0.05)
GONE = Kind("gone", "back", "it is gone", settle_s=0.0, lasts=True)
ODD = Kind("odd", "even", "some are odd", settle_s=0.05, blocks=False)


def named(lines: list[Any], *names: str) -> list[Any]:
    return [line for line in lines if line["event"] in names]


async def test_it_is_said_once_at_each_end_with_how_many_it_held_up() -> None:
    conditions = Conditions(name="guard")
    with captured_logs() as lines:
        for number in range(100):
            conditions.raise_(FULL, "LOG", held=f"r{number % 7}", size=number)
        assert [each.text for each in conditions.reasons()] == ["LOG is full"]
        conditions.clear(FULL, "LOG")
        assert conditions.reasons() == []
        await until(lambda: not conditions)
    begins, ends = lines
    assert begins == {"event": "full", "log_level": "warning", "name": "guard", "about": "LOG", "size": 0}
    assert ends["event"] == "has_room"
    assert ends["held_up"] == 7
    assert ends["lasted_s"] >= 0
    assert conditions.raised == 100


async def test_one_that_comes_and_goes_is_one_condition() -> None:
    conditions = Conditions()
    with captured_logs() as lines:
        for _ in range(20):
            conditions.raise_(FULL, "LOG")
            conditions.clear(FULL, "LOG")
            await asyncio.sleep(0)
        await until(lambda: not conditions)
    assert [line["event"] for line in lines] == ["full", "has_room"]


async def test_two_of_a_kind_about_two_things_are_two() -> None:
    conditions = Conditions()
    with captured_logs() as lines:
        conditions.raise_(FULL, "LOG")
        conditions.raise_(FULL, "PROP")
        conditions.clear(FULL, "LOG")
        assert [each.text for each in conditions.reasons()] == ["PROP is full"]
        conditions.clear(FULL, "PROP")
        await until(lambda: not conditions)
    assert len(named(lines, "full")) == len(named(lines, "has_room")) == 2


async def test_one_that_nobody_raises_any_more_is_over() -> None:
    conditions = Conditions(forget_s=0.05)
    with captured_logs() as lines:
        conditions.raise_(FULL, "LOG")
        conditions.raise_(GONE)
        await until(lambda: bool(named(lines, "has_room")))
        assert [each.code for each in conditions.reasons()] == ["gone"]
        conditions.clear(GONE)
        await until(lambda: not conditions)
    assert [line["event"] for line in lines] == ["full", "gone", "has_room", "back"]


async def test_what_concerns_some_messages_leaves_the_process_ready() -> None:
    conditions = Conditions()
    conditions.raise_(ODD, held="one")
    assert conditions
    assert conditions.reasons() == []
    conditions.close()


async def test_clear_and_hold_begin_nothing() -> None:
    conditions = Conditions()
    with captured_logs() as lines:
        conditions.clear(FULL, "LOG")
        conditions.hold(FULL, "LOG", held="r")
    assert lines == []
    assert not conditions
