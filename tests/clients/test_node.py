"""The tests of `clients/node`, run by Node.js against a mesh in a process of its own."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import PACKAGE, tried
from tests.docs.pages import commands
from tests.servers import ROOT

FILES = sorted(file.name for file in (ROOT / PACKAGE / "test").glob("*.test.mjs"))


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
    needed = json.loads((ROOT / PACKAGE / "package.json").read_text())["dependencies"]
    assert set(shlex.split(install, comments=True)) == {"npm", "install", *needed}


def test_the_package_has_tests_and_names_no_registry() -> None:
    assert {"checked.test.mjs", "generated.test.mjs", "log.test.mjs", "mesh.test.mjs"} <= set(FILES)
    assert not (ROOT / PACKAGE / "package-lock.json").exists()
