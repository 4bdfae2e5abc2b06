"""`mesh replay --agent`: code on this disk over an exported log, in processes that it cannot hold up."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import Result

from mesh.cli.exits import Exit
from mesh.replay.export import StoredStep, step_line
from mesh.replay.shares import Share
from mesh.testing import FleetHarness, InMemoryGuard, StrictModel, driven_by, fleet_of
from protocol.wire import subjects
from tests.servers import ROOT, until
from tests.unit.cli.conftest import STORY, Mesh, here, mesh
from tests.unit.replay import shop
from tests.vendors.claude import StubClaude
from tests.vendors.stand_in import Answer, calls, says

__all__ = ["here", "mesh"]

AGENTS = ("front", "billing", "writer")


async def _played(folder: Path, requests: int) -> list[bytes]:
    """Return an export with steps of so many requests that the shop's own code played."""
    agents, lines = shop.agents_in(shop.SOURCE, folder), list[bytes]()
    fleet = msgspec.structs.replace(fleet_of("front", "billing", "writer", "refunds", human=True), revision=7)
    prompts: dict[str, bytes] = {}
    for number in range(requests):
        walk = FleetHarness(InMemoryGuard(fleet, number=number), agents)
        with driven_by(StrictModel(*shop.REPLIES)):
            await walk.go("It broke", facts={"order": "O-1"}, replies=[True])
        lines += [*walk.guard.bodies, *map(step_line, walk.recording.steps)]
        prompts |= walk.recording.prompts
    stored = [StoredStep(subjects.prompt("writer", digest), body) for digest, body in prompts.items()]
    stored.append(StoredStep(subjects.FLEET, msgspec.json.encode(fleet), 7, "ada"))
    return [*lines, *map(step_line, stored)]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four requests with their steps."""
    folder = tmp_path_factory.mktemp("export")
    path = folder / "log.jsonl"
    path.write_bytes(b"\n".join(asyncio.run(_played(folder, 4))) + b"\n")
    return path


def code(folder: Path, *changes: tuple[str, str], name: str = "shop_here") -> list[str]:
    """Write the shop's code with changes; return the options that name it."""
    source = shop.SOURCE
    for was, now in changes:
        assert source.count(was) == 1
        source = source.replace(was, now)
    (folder / f"{name}.py").write_text(source)
    return [part for agent in AGENTS for part in ("--agent", f"{agent}={name}:{agent}")]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the shop's code imports its tools from the tests


def lines_of(result: Result) -> list[str]:
    return [line for line in result.stdout.splitlines() if line.startswith("client_")]


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_code_that_ran_comes_to_the_same(jobs: int, mesh: Mesh, here: Path, export: Path) -> None:
    result = mesh("replay", export, *code(here), "--jobs", jobs)
    assert result.exit_code == Exit.DONE, result.output
    assert result.stdout.splitlines() == [
        "agent\trounds\tsame",
        "billing\t8\t8",
        "front\t4\t4",
        "writer\t4\t4",
    ]


def test_other_code_is_told_by_agent_and_kind_and_in_a_line_a_request(
    mesh: Mesh, here: Path, export: Path
) -> None:
    changed = code(here, ('"billing", summary', '"refunds", summary'), ("cents=cents)", "cents=cents + 1)"))
    result = mesh("replay", export, *changed, "--jobs", 2)
    assert result.exit_code == Exit.FAILED
    assert result.stdout.splitlines()[:4] == [
        "agent\trounds\tsame\targuments\tmove",
        "billing\t8\t4\t4\t0",
        "front\t4\t0\t0\t4",
        "writer\t4\t4\t0\t0",
    ]
    first, *others = lines_of(result)
    assert "event 1  front v1→disk  move: to billing → refunds; the guard would admit it" in first
    assert first.endswith("(and in 1 later round)")
    assert len(others) == 3


def test_programs_read_all_of_it(mesh: Mesh, here: Path, export: Path) -> None:
    changed = code(here, ("Be kind.", "Be brief."))
    result = mesh("replay", export, *changed, "--json", "--junit", "report.xml", "--jobs", 1)
    said = json.loads(result.stdout)
    assert {"agent": "writer", "kind": "prompt", "count": 4} in said["rounds"]
    assert {each["kind"] for each in said["different"]} == {"prompt"}
    assert "+You write to customers. Be brief." in said["different"][0]["diff"]
    suites = {each.get("name"): each for each in ElementTree.parse(here / "report.xml").getroot()}
    assert {name: (each.get("tests"), each.get("failures")) for name, each in suites.items()} == {
        "front": ("4", "0"),
        "billing": ("8", "0"),
        "writer": ("4", "4"),
    }


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("raise SystemExit(3)", "SystemExit"),
        ("os._exit(3)", "ends its process with exit status 3"),
        ("os.kill(os.getpid(), 9)", "ends its process by SIGKILL"),
        ("while True: pass", "comes to no end within 3 s"),
        ("await asyncio.Event().wait()", "comes to no end within 3 s"),
    ],
)
def test_code_that_ends_its_process_or_never_returns_costs_that_round_alone(
    does: str, says: str, mesh: Mesh, here: Path, export: Path
) -> None:
    only_one = f"if turn.request.endswith('2'):\n        {does}\n    done = await"
    result = mesh("replay", export, *code(here, ("done = await", only_one)), "--jobs", 1, "--limit", 3)
    assert result.exit_code == Exit.FAILED, result.output
    assert "billing\t8\t7\t1" in result.stdout
    (line,) = lines_of(result)
    assert "raises: " in line
    assert says in line


def test_code_that_prints_disturbs_nobody(mesh: Mesh, here: Path, export: Path) -> None:
    result = mesh(
        "replay", export, *code(here, ("    done = await", '    print("{}" * 10_000)\n    done = await'))
    )
    assert result.exit_code == Exit.DONE
    assert "{}" not in result.output


def test_code_gets_no_credential(
    mesh: Mesh, here: Path, export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NATS_URL", "MESH_CREDENTIALS", "MESH_NAME", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "secret")
    looks = code(
        here, ("import asyncio\n", 'import asyncio\nimport os\nassert "secret" not in os.environ.values()\n')
    )
    assert mesh("replay", export, *looks).exit_code == Exit.DONE


def test_a_log_without_steps_is_never_green(mesh: Mesh, here: Path, export: Path) -> None:
    """Nor is one without a round of the agent."""
    bare = here / "bare.jsonl"
    kept = [line for line in export.read_bytes().splitlines() if b'{"step":"mesh.step.' not in line]
    bare.write_bytes(b"\n".join(kept))
    result = mesh("replay", bare, *code(here)[:2])
    assert (result.exit_code, int(Exit.NOTHING_JUDGED)) == (Exit.NOTHING_JUDGED, 5)
    assert "4 rounds of front not replayable: its journal is not whole: 0 of 5 steps" in result.stderr
    result = mesh("replay", export, "--agent", "nobody=shop_here:front")
    assert (result.exit_code, "no round of nobody is there" in result.stderr) == (Exit.NOTHING_JUDGED, True)
    assert mesh("replay", STORY, "--agent", "triage=shop_here:front").exit_code == Exit.NOTHING_JUDGED


def test_only_requests_since_a_time_are_replayed(mesh: Mesh, here: Path, export: Path) -> None:
    """Those of the export are from a day far off."""
    assert mesh("replay", export, *code(here), "--since", "1h").exit_code == Exit.DONE
    late = mesh("replay", export, *code(here), "--since", "2099-01-01T00:00Z")
    assert late.exit_code == Exit.NOTHING_JUDGED


def test_only_requests_of_a_filter_are_replayed(mesh: Mesh, here: Path, export: Path) -> None:
    def rounds(where: str) -> int:
        result = mesh("replay", export, *code(here), "--where", where, "--json")
        return sum(each["count"] for each in json.loads(result.stdout)["rounds"])

    request = export.read_bytes().split(b'"request":"')[1].split(b'"')[0].decode()
    assert rounds(f"text={request}") * 4 == rounds("client=client agent=front") == 16
    assert rounds("agent=nobody") == 0
    wrong = mesh("replay", export, *code(here), "--where", "agnet=front")
    assert (wrong.exit_code, "did you mean agent" in wrong.stderr) == (Exit.USAGE, True)


async def test_a_model_is_asked_anew_in_so_many_turns(
    mesh: Mesh, here: Path, export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(wanted: Mapping[str, Any]) -> Answer:
        is_first = len(wanted["messages"]) == 1
        return (
            calls(("history", {"customer": "c-7", "year": 2026})) if is_first else says("It is on its way.")
        )

    brief = ["replay", export, *code(here, ("Be kind.", "Be brief.")), "--live-model", 2, "--json"]
    unasked = await asyncio.to_thread(mesh, *brief)
    assert (unasked.exit_code, "--yes" in unasked.stderr) == (Exit.USAGE, True)
    assert "2 turns ask the model anew" in unasked.stderr
    async with StubClaude(answer) as claude:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", claude.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "stub")
        asked = await asyncio.to_thread(mesh, *brief, "--yes")
    said = {(each["agent"], each["kind"]): each["count"] for each in json.loads(asked.stdout)["rounds"]}
    assert (said["writer", "same"], said["writer", "prompt"], len(claude.asked)) == (2, 2, 4), asked.output


@pytest.mark.parametrize(
    ("options", "says_so"),
    [
        (["--agent", "front"], "write billing=shop.billing:agent"),
        (["--agent", "front=no_such:agent"], "no module 'no_such'"),
        (["--agent", "front=shop_here:nobody"], "shop_here"),
        (["--agent", "front=broken:agent"], "ZeroDivisionError"),
        (["--agent", "front=exits:agent"], "it ends its process with exit status 7"),
        (["--agent", "front=shop_here:front", "--agent", "front=x:y"], "two codes"),
        (["--agent", "front=shop_here:front", "--allow", "front=stars"], "there are clock, random"),
        (
            ["--agent", "front=shop_here:front", "--policy", "p.toml"],
            "either --agent or --policy and --fleet",
        ),
        (["--agent", "front=shop_here:front", "--all"], "either a request or a file, or --all"),
        (["--junit", "x.xml"], "--agent NAME=MODULE:AGENT"),
    ],
)
def test_what_cannot_be_meant_is_told(
    options: list[str], says_so: str, mesh: Mesh, here: Path, export: Path
) -> None:
    code(here)
    (here / "broken.py").write_text("1 / 0\n")
    (here / "exits.py").write_text("import os\nos._exit(7)\n")
    result = mesh("replay", export, *options)
    assert result.exit_code == Exit.USAGE, result.output
    assert says_so in result.stderr


@pytest.mark.parametrize(
    "line", [b"not json", b'{"request":"x"}', b'{"step":"mesh.step.front.r.t.0-0"', b'{"n":3}']
)
def test_a_line_that_is_none_is_told_by_its_number(line: bytes, mesh: Mesh, here: Path, export: Path) -> None:
    broken = here / "broken.jsonl"
    lines = export.read_bytes().splitlines()
    request = b'"request":"' + lines[0].split(b'"request":"')[1].split(b'"')[0]
    line = line.replace(b'"request":"x', request).replace(b"front.r.t", b"front." + request[11:] + b".t")
    broken.write_bytes(b"\n".join([*lines[:2], line, *lines[2:]]))
    result = mesh("replay", broken, *code(here), "--jobs", 1)
    place = f"{broken}: line 3 is no event"
    assert (result.exit_code, place in result.stderr) == (Exit.USAGE, True), result.output


def test_a_request_is_only_in_its_own_share(export: Path) -> None:
    shares = []
    for index in range(3):
        with Share(export, frozenset(AGENTS), index=index, of=3) as share:
            shares.append({whole.request for whole in share.requests() if whole is not None})
    assert len(set.union(*shares)) == sum(map(len, shares)) == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_leaves_no_process_and_no_file(number: int, here: Path, export: Path) -> None:
    """Whatever the code is at."""
    (here / "tmp").mkdir()
    ready = here / "ready"
    endless = f"Path({str(ready)!r}).touch()\n    while True: pass\n    done = await"
    options = [*code(here, ("done = await", endless)), "--allow", "billing=files", "--limit", "600"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mesh", "replay", str(export), *options, "--jobs", "1"],
        env={**os.environ, "TMPDIR": str(here / "tmp")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        asyncio.run(until(ready.exists))
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert workers
        process.send_signal(number)
        asyncio.run(until(lambda: process.poll() is not None))
    finally:
        process.kill()
        process.wait()
    assert process.returncode == Exit.INTERRUPTED
    asyncio.run(until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers)))
    assert list((here / "tmp").iterdir()) == []
