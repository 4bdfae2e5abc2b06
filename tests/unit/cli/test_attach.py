"""`mesh attach`: one turn of an exported log, run again in this process."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mesh.cli.exits import Exit
from mesh.replay.export import StoredStep, load, step_line
from mesh.testing import FleetHarness, InMemoryGuard, StrictModel, driven_by, fleet_of
from protocol.wire import codec, subjects
from tests.servers import PATIENCE_S, ROOT
from tests.unit.cli.conftest import Mesh, here, mesh
from tests.unit.replay import shop

__all__ = ["here", "mesh"]


async def _played(folder: Path) -> list[bytes]:
    fleet = msgspec.structs.replace(fleet_of("front", "billing", "writer", "refunds", human=True), revision=7)
    walk = FleetHarness(InMemoryGuard(fleet), shop.agents_in(shop.SOURCE, folder))
    with driven_by(StrictModel(*shop.REPLIES)):
        await walk.go("It broke", facts={"order": "O-1"}, replies=[True])
    stored = msgspec.json.encode(fleet)
    conf = step_line(StoredStep(subjects.FLEET, stored, 7, "ada"))
    return [*walk.guard.bodies, *map(step_line, walk.recording.steps), conf]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One request with its steps."""
    folder = tmp_path_factory.mktemp("export")
    path = folder / "log.jsonl"
    path.write_bytes(b"\n".join(asyncio.run(_played(folder))) + b"\n")
    return path


HIDDEN = {"NATS_URL", "MESH_CREDENTIALS", "ANTHROPIC_API_KEY"}


def code(folder: Path, agent: str, *changes: tuple[str, str], name: str = "attached_shop") -> str:
    """Write the shop's code with changes; return the reference of an agent in it."""
    source = shop.SOURCE
    for was, now in changes:
        assert source.count(was) == 1
        source = source.replace(was, now)
    (folder / f"{name}.py").write_text(source)
    sys.modules.pop(name, None)
    return f"{name}:{agent}"


def typed(folder: Path, said: str, *arguments: object, **added: str) -> subprocess.CompletedProcess[str]:
    """Give the command in a process of its own, and the debugger what is said."""
    return subprocess.run(
        [sys.executable, "-m", "mesh", "attach", *map(str, arguments)],
        input=said,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}", **added},
        timeout=PATIENCE_S * 4,
        check=False,
    )


def test_the_round_that_came_to_an_event_is_run_again(mesh: Mesh, here: Path, export: Path) -> None:
    result = mesh("attach", export, code(here, "front"), "--turn", 1)
    assert result.exit_code == Exit.DONE, result.output
    assert result.stdout.rstrip().endswith("event 1  front round 0  same")


def test_a_turn_is_named_by_its_id_and_runs_in_all_its_rounds(mesh: Mesh, here: Path, export: Path) -> None:
    (bodies,) = load(export).values()
    turn = next(
        event.work.turn for event in map(codec.decode_event, bodies) if event.to == "billing" and event.work
    )
    result = mesh("attach", export, code(here, "billing"), "--turn", turn[:12])
    assert [line.rpartition("  ")[2] for line in result.stdout.splitlines()] == ["same", "same"]
    assert [line.split()[-2] for line in result.stdout.splitlines()] == ["0", "1"]


def test_other_code_is_told_with_the_guards_verdict(mesh: Mesh, here: Path, export: Path) -> None:
    changed = code(here, "front", ('"billing", summary', '"refunds", summary'))
    result = mesh("attach", export, changed, "--turn", 1)
    assert result.exit_code == Exit.FAILED
    assert "event 1  front v1→disk  move: to billing → refunds; the guard would admit it" in result.stdout


def test_programs_read_the_rounds_and_nothing_that_the_code_prints(
    mesh: Mesh, here: Path, export: Path
) -> None:
    says = code(here, "front", ("    past, open_ =", "    print('hello')\n    past, open_ ="))
    result = mesh("attach", export, says, "--turn", 1, "--json")
    (only,) = json.loads(result.stdout)
    assert (only["agent"], only["n"], only["result"], only["difference"]) == ("front", 1, "same", None)


def test_a_turn_that_is_not_there_is_answered_with_those_that_are(
    mesh: Mesh, here: Path, export: Path
) -> None:
    result = mesh("attach", export, code(here, "front"), "--turn", 99)
    assert result.exit_code == Exit.FAILED
    assert all(f"({agent})" in result.output for agent in ("front", "billing", "writer"))


def test_the_debugger_stops_at_the_handlers_first_line(here: Path, export: Path) -> None:
    ended = typed(here, "p turn.facts['order']\nc\n", export, code(here, "front"), "--turn", 1, "--pdb")
    assert "> " in ended.stdout
    assert 'order = await turn.call(find, order=turn.facts["order"])' in ended.stdout
    assert "'O-1'" in ended.stdout
    assert ended.returncode == Exit.DONE, ended


def test_the_debugger_opens_where_an_exception_left_the_code(here: Path, export: Path) -> None:
    broken = code(here, "front", ("    past, open_ =", '    wrong = order["nothing"]\n    past, open_ ='))
    ended = typed(here, "c\np order['customer']\nq\n", export, broken, "--turn", 1, "--pdb")
    assert "'c-7'" in ended.stdout
    assert "KeyError" in ended.stdout
    assert ended.returncode == Exit.FAILED, ended


def test_a_breakpoint_in_the_code_stops_there(here: Path, export: Path) -> None:
    stops = code(here, "front", ("    past, open_ =", "    breakpoint()\n    past, open_ ="))
    ended = typed(here, "p order['customer']\nc\n", export, stops, "--turn", 1)
    assert "'c-7'" in ended.stdout
    assert ended.returncode == Exit.DONE, ended


def test_the_code_finds_no_credentials(here: Path, export: Path) -> None:
    looks = code(
        here,
        "front",
        (
            "\nasync def front(turn):\n",
            f"\nasync def front(turn):\n    print('FOUND', sorted({HIDDEN} & set(os.environ)))\n",
        ),
    )
    ended = typed(here, "", export, looks, "--turn", 1, **dict.fromkeys(HIDDEN, "known"))
    assert "FOUND []" in ended.stdout, ended
