"""The tests of `clients/node`, run by Node.js against a mesh in a process of its own."""

import inspect
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from mesh.agent import Turn
from tests.clients.conftest import PACKAGE, tried
from tests.docs.pages import commands
from tests.servers import PATIENCE_S, ROOT

MANIFEST = json.loads((ROOT / PACKAGE / "package.json").read_text())
AUTHORS = """\
import { connectAs, serve, type Turn } from "@handoff-mesh/agent";
const nc = await connectAs("front", { servers: "nats://127.0.0.1:4222", seedFile: "front.nk" });
await serve(nc, { name: "front" }, (turn: Turn) => turn.transfer("billing", { summary: "look" }));
// @ts-expect-error the summary is taken by name
await serve(nc, { name: "front" }, (turn: Turn) => turn.transfer("billing", "look"));
"""
FILES = sorted(file.name for file in (ROOT / PACKAGE / "test").glob("*.test.mjs"))


_MOVES = {
    "transfer": "transfer",
    "hand_back": "handBack",
    "task": "task",
    "delegate": "delegate",
    "deliver": "deliver",
    "ask": "ask",
    "escalate": "escalate",
    "complete": "complete",
    "fail": "fail",
}
"""Each move of the Python package, and its name in Node.js."""


@pytest.mark.timeout(600)  # two leases have to end, and a second submit comes after five seconds
@pytest.mark.parametrize("file", FILES)
def test_the_package_passes_its_own_tests(file: str, package: Path, node_environment: dict[str, str]) -> None:
    command = ["node", f"test/{file}"]
    ran = subprocess.run(
        command, cwd=package, env=node_environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.timeout(600)
async def test_the_package_keeps_to_the_protocol(package: Path, tmp_path: Path) -> None:
    command = f"exec node {package / 'test' / 'checked-agent.mjs'}"
    assert [finding for finding in await tried(command, tmp_path) if not finding.ok] == []


def test_the_page_installs_what_the_package_needs() -> None:
    (install, _), *_ = commands((ROOT / PACKAGE / "README.md").read_text())
    assert set(shlex.split(install, comments=True)) == {"npm", "install", *MANIFEST["dependencies"]}


@pytest.mark.timeout(600)  # two installations by npm
def test_a_packed_package_has_its_types_in_an_empty_project(package: Path, tmp_path: Path) -> None:
    (tarball,) = json.loads(_run(package, "npm", "pack", "--json", f"--pack-destination={tmp_path}"))
    assert {each["path"] for each in tarball["files"]} >= {"lib/index.js", "types/index.d.ts"}
    project = tmp_path / "project"
    project.mkdir()
    (project / "package.json").write_text('{"type": "module", "private": true}')
    (project / "agent.ts").write_text(AUTHORS)
    tools = [f"{name}@{MANIFEST['devDependencies'][name]}" for name in ("typescript", "@types/node")]
    _run(project, "npm", "install", "--prefer-offline", *_QUIET, str(tmp_path / tarball["filename"]), *tools)
    _run(project, "npx", "tsc", "--strict", "--module", "nodenext", "--target", "es2022", "agent.ts")
    named = 'console.log(Object.keys(await import("@handoff-mesh/agent")).join())'
    assert {"serve", "Client", "Turn"} <= {*_run(project, "node", *_MODULE, named).strip().split(",")}


_MODULE = ("--input-type=module", "--eval")
_QUIET = ("--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")


def _run(directory: Path, *command: str) -> str:
    ran = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S * 2, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("move", [*_MOVES])
def test_a_move_takes_by_name_what_the_python_package_does(move: str, package: Path) -> None:
    code = 'console.log(JSON.stringify((await import("./lib/turn.js")).NAMES))'
    names: dict[str, list[str]] = json.loads(_run(package, "node", *_MODULE, code))
    assert names.keys() == {*_MOVES.values()}
    parameters = inspect.signature(getattr(Turn, move)).parameters.values()
    pythons = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY or each.name == "code"}
    assert {*names[_MOVES[move]]} - {"labels"} == pythons  # in Python a fact has its own


def test_the_oldest_node_is_the_same_wherever_it_is_named() -> None:
    oldest = MANIFEST["engines"]["node"].removeprefix(">=")
    for page in (f"{PACKAGE}/README.md", "CONTRIBUTING.md", "tests/with-tools", "tests/clients/conftest.py"):
        named = re.findall(r"Node\.js (?:must be )?(\d+) or newer", (ROOT / page).read_text())
        assert {*named} == {oldest}, page


def test_the_package_has_tests_and_names_no_registry() -> None:
    tried = {"checked", "generated", "log", "mesh", "moves"}
    assert tried <= {file.removesuffix(".test.mjs") for file in FILES}
    assert not (ROOT / PACKAGE / "package-lock.json").exists()
