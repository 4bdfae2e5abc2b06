"""Which alarm is told first, when many wait to be told."""

import asyncio
from typing import Literal

from mesh.ops.watch import Alarm, Alarms
from tests.servers import PATIENCE_S


def alarm(what: Literal["escalation", "ask", "dead_letter"], request: str) -> Alarm:
    return Alarm(what=what, at=1, request=request, agent="a", summary="s", reason="r", url="u")


async def test_what_waits_for_people_is_told_before_dead_letters() -> None:
    alarms = Alarms()
    for each in (
        alarm("dead_letter", "1"),
        alarm("dead_letter", "2"),
        alarm("ask", "3"),
        alarm("escalation", "4"),
    ):
        alarms.put(each)
    told = []
    for _ in range(4):
        told.append((await alarms.get()).request)
        alarms.told()
    assert told == ["3", "4", "1", "2"]
    async with asyncio.timeout(PATIENCE_S):
        await alarms.all_told()
