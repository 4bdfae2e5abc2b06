"""A whole mesh whose guards' clocks are ten minutes off, one ahead and one behind: nobody's time is wrong."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from mesh.bus.roles import ADMIN
from mesh.ops.health import Look, run
from mesh.service import failpoints
from tests.drill import clocks
from tests.drill.arena import Arena, Setting
from tests.drill.check import check
from tests.drill.clocks import ahead_s, guards_off_by
from tests.drill.fleet import drill_fleet
from tests.drill.stories import story

OFF_S = 600.0
TIMED = ("expires", "tree-expires", "replied-without-guards", "approved-without-guards", "retried", "plain")
"""Stories that end otherwise if a guard goes by its machine's clock."""


@pytest.mark.timeout(180)
async def test_every_request_ends_as_it_should_where_guards_are_ten_minutes_off_both_ways(
    tmp_path: Path,
) -> None:
    setting = Setting(file=drill_fleet(2.0, 1.0), instances=1, commands=guards_off_by(OFF_S))
    async with Arena(setting, tmp_path / "drill") as arena:
        rng = random.Random(3)
        sent = await asyncio.gather(*(arena.send(story(name, rng)) for name in TIMED))
        await asyncio.gather(*(arena.rest(request, 60) for request in sent))
        async with await arena.fleet.connect_as(ADMIN) as admin:
            told = [each.text for each in await run("clock", Look(admin)) if each.state == "found"]
        evidence = await arena.evidence()
    assert sum(" ahead of the server's" in text for text in told) == 1
    assert sum(" behind the server's" in text for text in told) == 1
    findings = check(evidence)
    assert findings.breaches == ()
    assert dict(findings.ended) == {"completed": len(TIMED) - 2, "expired": 2}
    assert dict(findings.dead_letters) == {}


def test_a_shifted_process_has_the_wrong_time_and_dates_its_faults_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for clock in ("time", "time_ns"):
        monkeypatch.setattr(time, clock, getattr(time, clock))
    monkeypatch.setattr(failpoints, "time", time)
    right = time.time()
    clocks.shift(-OFF_S)
    assert abs(time.time() - (right - OFF_S)) < 60
    assert abs(time.time_ns() / 1e9 - (right - OFF_S)) < 60
    assert abs(vars(failpoints)["time"].time_ns() / 1e9 - right) < 60


def test_every_second_guard_is_behind() -> None:
    assert [ahead_s(5.0, name) for name in ("guard-1", "guard-2", "guard-3", "guard")] == [5, -5, 5, 5]
