"""The Node.js package, installed into a directory of the tests' own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import PATIENCE_S, ROOT

PACKAGE = Path("clients") / "node"
NOT_COPIED = shutil.ignore_patterns("node_modules", "package-lock.json", "types")


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`clients/node`, installed by its own package manager beside the published schema."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.fail(
                f"{tool} is not installed: needed are Node.js 18 or newer and npm (.ci/run brings both)"
            )
    root = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / PACKAGE, root / PACKAGE, ignore=NOT_COPIED)
    shutil.copytree(ROOT / "protocol" / "schema", root / "protocol" / "schema")
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    installed = subprocess.run(
        command, cwd=root / PACKAGE, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if installed.returncode:
        pytest.fail(f"npm install failed:\n{installed.stderr}")
    return root / PACKAGE


@pytest.fixture(scope="session")
def node_environment() -> dict[str, str]:
    """What tells the package's tests where a mesh comes from."""
    return {**os.environ, "MESH_PYTHON": sys.executable, "MESH_ROOT": str(ROOT)}
