"""The Node.js package, installed into a directory of the tests' own."""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.conformance.checks import CHECKS, CheckResult, check_agent
from tests.servers import PATIENCE_S, ROOT

AT_ONCE = 3
"""Scratch meshes side by side: an agent that is tried waits most of the time."""
PACKAGE = Path("clients") / "node"
NOT_COPIED = shutil.ignore_patterns("node_modules", "package-lock.json", "types")


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`clients/node`, installed beside the published schema by the first of a run's processes to need it."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.fail(
                f"{tool} is not installed: needed are Node.js 18 or newer and npm (make test installs both)"
            )
    own = tmp_path_factory.getbasetemp()
    run = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    root = run / "checkout"
    with (run / "checkout.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "installed").exists():
            _install(root)
            (root / "installed").touch()
    return root / PACKAGE


def _install(root: Path) -> None:
    """Copy the package and the schema, and let the package's own manager bring what it needs."""
    shutil.copytree(ROOT / PACKAGE, root / PACKAGE, ignore=NOT_COPIED, dirs_exist_ok=True)
    shutil.copytree(ROOT / "protocol" / "schema", root / "protocol" / "schema", dirs_exist_ok=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    installed = subprocess.run(
        command, cwd=root / PACKAGE, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if installed.returncode:
        pytest.fail(f"npm install failed:\n{installed.stderr}")


@pytest.fixture(scope="session")
def node_environment() -> dict[str, str]:
    """What tells the package's tests where a mesh comes from."""
    return {**os.environ, "MESH_PYTHON": sys.executable, "MESH_ROOT": str(ROOT)}


async def tried(command: str, directory: Path) -> list[CheckResult]:
    """Return the findings of every check of the agent `front`, a part of them on each scratch mesh."""

    async def part(number: int) -> list[CheckResult]:
        own = directory / f"part-{number}"
        own.mkdir()
        checks = CHECKS[number::AT_ONCE]
        run = check_agent("front", command, own, checks=checks, patience_s=PATIENCE_S)
        return [finding async for finding in run]

    parts = await asyncio.gather(*map(part, range(AT_ONCE)))
    assert sorted(each.check for found in parts for each in found[1:]) == sorted(each.name for each in CHECKS)
    return [finding for found in parts for finding in found]
