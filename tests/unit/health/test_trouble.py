"""A trouble is said once when it begins and once when it ends."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from mesh.service import conditions as trouble
from mesh.service.conditions import Kind, Troubles
from tests.servers import until

FULL = Kind("full", "has_room", "{} is full", settle_s=0.05)
GONE = Kind("gone", "back", "it is gone", settle_s=0.0, lasts=True)
ODD = Kind("odd", "even", "some are odd", settle_s=0.05, blocks=False)


def named(lines: list[Any], *names: str) -> list[Any]:
    return [line for line in lines if line["event"] in names]


async def test_it_is_said_once_at_each_end_with_how_many_it_held_up() -> None:
    troubles = Troubles(name="guard")
    with capture_logs() as lines:
        for number in range(100):
            troubles.hit(FULL, "LOG", held=f"r{number % 7}", size=number)
        assert [each.text for each in troubles.reasons()] == ["LOG is full"]
        troubles.well(FULL, "LOG")
        assert troubles.reasons() == []
        await until(lambda: not troubles)
    begins, ends = lines
    assert begins == {"event": "full", "log_level": "warning", "name": "guard", "about": "LOG", "size": 0}
    assert ends["event"] == "has_room"
    assert ends["held_up"] == 7
    assert ends["lasted_s"] >= 0
    assert troubles.met == 100


async def test_one_that_comes_and_goes_is_one_trouble() -> None:
    troubles = Troubles()
    with capture_logs() as lines:
        for _ in range(20):
            troubles.hit(FULL, "LOG")
            troubles.well(FULL, "LOG")
            await asyncio.sleep(0)
        await until(lambda: not troubles)
    assert [line["event"] for line in lines] == ["full", "has_room"]


async def test_two_of_a_kind_about_two_things_are_two() -> None:
    troubles = Troubles()
    with capture_logs() as lines:
        troubles.hit(FULL, "LOG")
        troubles.hit(FULL, "PROP")
        troubles.well(FULL, "LOG")
        assert [each.text for each in troubles.reasons()] == ["PROP is full"]
        troubles.well(FULL, "PROP")
        await until(lambda: not troubles)
    assert len(named(lines, "full")) == len(named(lines, "has_room")) == 2


async def test_one_that_nobody_meets_any_more_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "FORGET_S", 0.05)
    troubles = Troubles()
    with capture_logs() as lines:
        troubles.hit(FULL, "LOG")
        troubles.hit(GONE)
        await until(lambda: bool(named(lines, "has_room")))
        assert [each.code for each in troubles.reasons()] == ["gone"]
        troubles.well(GONE)
        await until(lambda: not troubles)
    assert [line["event"] for line in lines] == ["full", "gone", "has_room", "back"]


async def test_what_concerns_some_messages_leaves_the_process_ready() -> None:
    troubles = Troubles()
    troubles.hit(ODD, held="one")
    assert troubles
    assert troubles.reasons() == []
    troubles.close()


async def test_well_and_hold_begin_nothing() -> None:
    troubles = Troubles()
    with capture_logs() as lines:
        troubles.well(FULL, "LOG")
        troubles.hold(FULL, "LOG", held="r")
    assert lines == []
    assert not troubles
