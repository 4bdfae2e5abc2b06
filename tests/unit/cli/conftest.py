"""The command line without a bus: commands that read files, and an environment that says nothing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.servers import ROOT
from tests.system.terminal import in_process

STORY = ROOT / "tests" / "golden" / "logs" / "long-story.jsonl"
"""One request's whole life, as exported."""

Mesh = Callable[..., Result]

OURS = ("NATS_URL", "MESH_NAME", "MESH_CREDENTIALS", "MESH_LOG_FORMAT", "MESH_LOG_LEVEL")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and nothing in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name in OURS:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def mesh(here: Path) -> Mesh:
    """Run a command as `mesh` would."""
    return in_process


def spoilt(path: Path) -> Path:
    """Write the story with one value changed in the middle of it, and return where."""
    lines = STORY.read_text().splitlines()
    event = json.loads(lines[12])
    event["reason"] = "it is somebody else's"
    path.write_text("\n".join([*lines[:12], json.dumps(event), *lines[13:], ""]))
    return path
