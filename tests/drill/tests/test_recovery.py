"""Recovery times: from the fault until all that was open at the victim has moved."""

from dataclasses import replace

import pytest

from protocol.wire.commands import Settle
from tests.drill.check import check
from tests.drill.evidence import Evidence, Fault, StepName
from tests.drill.findings import Recovery
from tests.drill.reading import Reading
from tests.drill.recovery import recovery
from tests.drill.tests.scene import REQUEST, SECOND, Scene, opened, whole
from tests.unit.protocol.worlds import complete, transfer


def of(evidence: Evidence) -> dict[str, Recovery]:
    return recovery(Reading(evidence))


def hit(scene: Scene, identity: str, name: str, at: int) -> Evidence:
    fault = Fault("kill", identity, name, at, at)
    return replace(scene.evidence(), faults=(fault,))


def test_an_agents_work_moves_with_its_next_step_or_verdict() -> None:
    found = of(whole().evidence())["agent"]
    # Killed in the middle of an effect: two seconds, and two milliseconds until the result is journaled.
    # Killed before it found a doubt, in a delivery that came to no step: nothing shows whose it was.
    assert found == Recovery(faults=1, idle=1, unrecovered=0, p50_s=2.002, p99_s=2.002, max_s=2.002)


def test_another_delivery_shows_that_a_round_without_steps_was_interrupted() -> None:
    scene = opened()
    at = scene.court.now + SECOND
    turn = scene.court.turn
    scene.pass_s(3.0)
    scene.court.move(complete())
    scene.steps[StepName("a", REQUEST, turn, "0-a0")] = b"{}"
    assert of(hit(scene, "a-1", "a", at))["agent"].max_s == 2.0


def test_a_round_that_somebody_went_on_with_was_not_interrupted() -> None:
    scene = opened()
    scene.step("0-0", "remark")
    at = scene.court.now + SECOND
    scene.pass_s(3.0)
    scene.step("0-1", "remark")
    scene.court.move(complete())
    assert of(hit(scene, "a-1", "a", at))["agent"].idle == 1


def test_work_that_never_moves_again_is_no_time() -> None:
    scene = opened()
    found = of(hit(scene, "a-1", "a", scene.court.now + 1))["agent"]
    assert (found.faults, found.unrecovered, found.max_s) == (1, 1, None)


@pytest.mark.parametrize("name", ["b", "guard"])
def test_a_fault_that_meets_nobody_at_work_is_idle(name: str) -> None:
    scene = opened()
    at = scene.court.now + 1
    scene.pass_s(1.0)
    scene.court.move(complete())
    found = of(hit(scene, f"{name}-1", name, at))
    assert found == {
        "guard" if name == "guard" else "agent": Recovery(
            faults=0, idle=1, unrecovered=0, p50_s=None, p99_s=None, max_s=None
        )
    }


def test_a_turn_that_waits_for_somebody_does_not_count() -> None:
    scene = opened()
    scene.court.doubt()
    at = scene.court.now + 1
    scene.pass_s(60.0)
    scene.court.control(Settle, turn=scene.court.turn, round=0, outcome="not_done")
    assert of(hit(scene, "a-1", "a", at))["agent"].idle == 1


def test_a_guards_work_is_a_submit_without_its_verdict() -> None:
    scene = Scene()
    sent = scene.court.now
    scene.pass_s(3.0)
    scene.court.submit()
    evidence = hit(scene, "guard-1", "guard", sent + SECOND)
    assert of(evidence)["guard"].max_s == 2.0


def test_a_guards_work_is_a_round_whose_last_step_is_journaled() -> None:
    scene = opened()
    scene.step("0-0", "remark")
    at = scene.court.now + SECOND
    scene.pass_s(5.0)
    scene.court.move(transfer("b"))
    assert of(hit(scene, "guard-1", "guard", at))["guard"].max_s == 4.0


def test_the_server_holds_up_everybody() -> None:
    scene = opened()
    scene.step("0-0", "remark")
    at = scene.court.now + SECOND
    scene.pass_s(5.0)
    scene.court.move(transfer("b"))
    assert of(hit(scene, "nats-server", "nats-server", at))["nats-server"].max_s == 4.0


def test_percentiles_are_over_faults() -> None:
    scene = opened()
    start = scene.court.now
    for n in range(100):
        scene.pass_s(1.0)
        scene.delivery += 1
        scene.step(f"0-{n}", "remark")
    # Fault k comes k hundredths of a second before step k.
    faults = [
        Fault("kill", "a-1", "a", start + (k + 1) * (SECOND + 1000) - k * 10_000, 0) for k in range(1, 100)
    ]
    found = of(replace(scene.evidence(), faults=tuple(faults)))["agent"]
    assert (found.faults, found.p50_s, found.p99_s, found.max_s) == (99, 0.5, 0.99, 0.99)


@pytest.mark.parametrize("name", ["a", "guard", "nats-server"])
def test_work_that_is_hit_again_before_it_moves_is_in_no_time(name: str) -> None:
    scene = opened()
    scene.step("0-0", "remark")
    at = scene.court.now + SECOND
    scene.pass_s(5.0)
    scene.delivery += 1
    scene.step("0-1", "remark")
    first = Fault("kill", "a-1", "a", at, at)
    again = Fault("kill", f"{name}-1", name, at + SECOND, at + SECOND)
    elsewhere = Fault("kill", "b-1", "b", at + SECOND, at + SECOND)
    assert of(replace(scene.evidence(), faults=(first, elsewhere)))["agent"].max_s == 4.001
    found = of(replace(scene.evidence(), faults=(first, again)))["agent"]
    assert found.disturbed == 1
    assert found.max_s == (3.001 if name == "a" else None)


def test_it_is_part_of_the_findings() -> None:
    assert set(check(whole().evidence()).recovery) == {"agent"}
    assert REQUEST
