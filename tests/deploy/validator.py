"""Run the tools that judge deploy/. A tool that is absent fails the test and says how to get it."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.servers import PATIENCE_S

DEPLOY = Path(__file__).parents[2] / "deploy"
PYTHON_TOOLS = Path(sys.executable).parent


def run(tool: str, *arguments: str | Path, install: str) -> subprocess.CompletedProcess[str]:
    """Return the finished run of `tool`, found beside this interpreter or on the PATH.

    Args:
        install: what to tell somebody who lacks it, for instance `apt-get install systemd`.
    """
    found = shutil.which(tool, path=str(PYTHON_TOOLS)) or shutil.which(tool)
    if found is None:
        pytest.fail(f"{tool} is missing, and without it this cannot be checked: {install}")
    command = [found, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def complaints(finished: subprocess.CompletedProcess[str]) -> str:
    """Return what a tool said, both streams in one."""
    return f"{finished.stdout}{finished.stderr}".strip()


def compose() -> dict[str, Any]:
    """Return the compose file of deploy/ with what its override adds, anchors resolved."""
    return _merged(*(YAML(typ="safe").load(DEPLOY / f"compose{kind}.yaml") for kind in ("", ".override")))


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge as compose does: tables by key, lists one after the other, else the upper file's value."""
    both = below | above
    for name in below.keys() & above.keys():
        low, high = below[name], above[name]
        if isinstance(low, dict):
            both[name] = _merged(low, high)
        elif isinstance(low, list):
            both[name] = low + high
    return both
