"""A drill ends whatever the fleet does: it is broken off once nothing moves, and says what stands still."""

import sys
from pathlib import Path

from mesh.bus.roles import GUARD
from tests.drill.arena import Setting
from tests.drill.check import check
from tests.drill.failpoints import FAILPOINTS
from tests.drill.fleet import drill_fleet
from tests.drill.run import Plan, drill
from tests.drill.stories import Story
from tests.drill.tests import broken_guard

LEASE_S = 1.0
STILL_S = 6.0


async def test_a_drill_of_a_guard_that_arms_no_timer_ends_and_names_what_waits(tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    fault.write_text("no-timer")
    setting = Setting(
        # On the lane an agent whose guard dies stores its proposal later, and that takes a timer's place.
        file=drill_fleet(LEASE_S, LEASE_S, lane=False),
        guards=1,
        instances=1,
        commands={GUARD: (sys.executable, "-m", broken_guard.__name__, str(fault))},
    )
    story = Story(name="retried", text="retried", script=(["retry"],))
    told: list[str] = []
    planned = Plan(
        setting=setting,
        stories=(story,),
        faults=len(FAILPOINTS),  # most of them are in nobody's way: without an end they would be waited for
        seed=1,
        sorts=("failpoint",),
        still_s=STILL_S,
    )
    found = check(await drill(planned, tmp_path / "drill", told.append))
    (unrested,) = found.unrested
    assert unrested.request
    assert {"nothing_lost", "comes_to_rest"} <= {breach.promise for breach in found.breaches}
    assert f"nothing has moved for {STILL_S:g} s: this drill is broken off" in told
