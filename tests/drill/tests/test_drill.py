"""A short drill as a user runs it: every kind of fault, no breach; and what the command says and returns."""

import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result

from mesh.bus.roles import GUARD
from mesh.cli.exits import Exit
from protocol.wire import codec, events
from protocol.wire.handoff import Rule
from tests.drill import ledger, run
from tests.drill.check import check
from tests.drill.command import COMMAND, app
from tests.drill.evidence import Evidence, Submitted
from tests.drill.failpoints import FAILPOINTS
from tests.drill.faults import plan, usual_sorts
from tests.drill.findings import Findings
from tests.drill.keep import load
from tests.drill.processes import HELD
from tests.drill.results import read_rows
from tests.drill.run import Plan
from tests.drill.stories import STORIES, stories
from tests.servers import ROOT
from tests.system.terminal import in_process
from tests.unit.cli.conftest import here

__all__ = ["here"]  # a fixture

REQUESTS, FAULTS, SEED = len(STORIES), 16, 11
WAIT_S = 560
"""The drill ends by itself; this is for a machine that is busy with much else."""


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.drill", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


@pytest.mark.timeout(WAIT_S + 20)
def test_a_short_drill_breaks_no_promise(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    said = command(
        *("--requests", str(REQUESTS), "--faults", str(FAULTS), "--seed", str(SEED)),
        *("--lease", "1.5", "--json", "--keep", str(kept)),
    )
    assert said.returncode == Exit.DONE, said.stdout + said.stderr
    assert said.stderr.startswith(f"{COMMAND} --seed {SEED}\n")
    found = msgspec.json.decode(said.stdout, type=Findings)
    assert found.breaches == ()
    sent = sum(1 + len(each.then) for each in stories(REQUESTS, random.Random(SEED)))
    assert (found.requests, found.acknowledged, sum(found.ended.values())) == (sent,) * 3
    assert (found.lost, found.duplicated, found.in_doubt) == (0, 0, 0)
    assert (found.unrested, found.unfinished) == ((), ())
    planned = sum(times for kind, times in found.faults.items() if kind != HELD)
    assert planned + len(found.unreached) == FAULTS
    assert set(found.unreached) <= set(FAILPOINTS)
    assert {"kill", "pause", "restart"} <= set(found.faults)
    assert set(found.faults) & set(FAILPOINTS)
    assert found.ledger
    assert {"read", "model", "idempotent", "reconcilable", "once"} <= set(found.deeds)
    evidence = load(kept / "evidence")
    assert any(fault.name == "nats-server" for fault in evidence.faults)
    happened = [codec.decode_event(body) for bodies in evidence.bodies.values() for body in bodies]
    refusals = (event for event in happened if isinstance(event, events.MoveRefused | events.RequestRefused))
    # A claim is refused by its own rule only after attempts that failed: no story has that.
    assert {event.refusal.rule for event in refusals} >= set(Rule) - {Rule.CLAIMED}
    assert evidence.asked
    assert check(evidence) == found  # what was kept says the same again


# --- what is drawn ------------------------------------------------------------------------------------


def test_a_seed_draws_the_same_stories_and_faults_again() -> None:
    def drawn(seed: int) -> object:
        rng = random.Random(seed)
        return stories(50, rng), plan(50, rng, ("a", "b"), usual_sorts(1))

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


@pytest.mark.parametrize("lane", [False, True])
def test_every_story_and_every_failpoint_gets_its_turn(lane: bool) -> None:
    rng = random.Random(1)
    assert {each.name for each in stories(len(STORIES), rng)} == set(STORIES)
    planned = plan(60, rng, ("a", "b"), usual_sorts(1), lane=lane)
    passed = {name for name, point in FAILPOINTS.items() if lane or not point.lane}
    assert {each.failpoint for each in planned if each.sort == "failpoint"} == passed
    assert {each.sort for each in planned} == set(usual_sorts(1))


# --- the command --------------------------------------------------------------------------------------


RunHere = Callable[..., Result]


@pytest.fixture
def run_here(here: Path) -> RunHere:
    """Run the command as `python -m tests.drill` would."""
    return partial(in_process, program=app)


@pytest.fixture
def drills(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """What the command would run; the drill itself loses its only request."""
    asked: list[Plan] = []

    async def lose(planned: Plan, directory: Path, on_progress: Callable[[str], None]) -> Evidence:
        asked.append(planned)
        lost = Submitted("app_01JAZ3NDEKTSV4RRFFQ69G5FAV", at=1, acknowledged=True)
        return Evidence(submitted=[lost], bodies={}, steps={}, deeds=[], faults=[])

    monkeypatch.setattr(run, "drill", lose)
    return asked


def test_a_breach_is_shown_and_is_a_failure(run_here: RunHere, drills: list[Plan]) -> None:
    result = run_here("--requests", "1", "--seed", "5")
    assert result.exit_code == Exit.FAILED
    assert "nothing_lost" in result.output
    assert "app_01JAZ3NDEKTSV4RRFFQ69G5FAV" in result.output
    assert len(drills) == 1


def test_what_the_options_say_is_planned(run_here: RunHere, drills: list[Plan], tmp_path: Path) -> None:
    said = ("--requests", "100", "--seed", "5", "--kinds", "kill,failpoint", "--lease", "2", "--guards", "3")
    run_here(*said, "--clock-off", "600", "--record", str(tmp_path / "book.md"))
    (planned,) = drills
    assert (len(planned.stories), planned.faults, planned.seed) == (100, 30, 5)
    assert planned.sorts == ("failpoint", "kill")
    assert planned.setting.guards == 3
    assert planned.setting.people
    assert planned.setting.commands[GUARD][-2:] == ("tests.drill.clocks", "600")
    assert [run.seed for run in read_rows((tmp_path / "book.md").read_text())] == [5]
    assert (planned.setting.file.fleet.lease_s, planned.setting.file.fleet.guard_lease_s) == (2.0, 1.0)


def test_a_fleet_of_ones_own_is_sent_its_own_requests(run_here: RunHere, drills: list[Plan]) -> None:
    home = ROOT / "agents" / "support"
    run_here("--requests", "70", "--fleet", str(home), "--requests-file", str(home / "requests.jsonl"))
    (planned,) = drills
    assert len(planned.stories) == 70
    assert not planned.setting.people
    assert planned.setting.file.name == "support"
    assert planned.stories[0].text.startswith("I was charged twice")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--kinds", "kill,tickle"), "tickle; there are failpoint, kill"),
        (("--fleet", "."), "go together"),
        (("--requests-file", "x.jsonl"), "go together"),
        (("--lease", "0.1"), "lease"),
        (("--keep", "{here}"), "there is something in it already"),
    ],
)
def test_a_wrong_use_is_told_before_anything_is_started(
    run_here: RunHere, drills: list[Plan], tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "file").write_text("x")
    result = run_here(*(each.replace("{here}", str(tmp_path)) for each in arguments))
    assert result.exit_code == Exit.USAGE
    assert said in result.output
    assert drills == []


# --- the ledger ---------------------------------------------------------------------------------------


def test_a_tool_outside_of_a_drill_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ledger.VARIABLE, raising=False)
    ledger.note("once", "post", request="r", call="c")
    path = tmp_path / "ledger"
    assert ledger.deeds(path) == []
    monkeypatch.setenv(ledger.VARIABLE, str(path))
    ledger.note("once", "post", request="r", call="c")
    ledger.note("idempotent", "pay", key="k")
    written: Any = ledger.deeds(path)
    assert [(deed.kind, deed.tool, deed.key, deed.request, deed.call) for deed in written] == [
        ("once", "post", "", "r", "c"),
        ("idempotent", "pay", "k", "", ""),
    ]
