"""The test runner: what it tells of a run, and that a run has an end."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from agents.code import workspace
from agents.code.workspace import run_pytest
from mesh.agent import Permanent


def written(folder: Path, text: str) -> Path:
    (folder / "tests").mkdir()
    (folder / "tests" / "test_it.py").write_text(text)
    return folder


ENDLESS = """
import os, subprocess, time

def test_endless():
    child = subprocess.Popen(["sleep", "600"])
    with open("pids.part", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    os.rename("pids.part", "pids")
    time.sleep(600)  # it outlasts every test: only a kill ends it
"""


def gone(pid: int) -> bool:
    """Return True if a process has ended: there is none, or only its entry is left."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_run_without_an_end_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Begun(subprocess.Popen[str]):
        """A run whose time is up as soon as it has started what it starts."""

        def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
            if timeout is not None:
                while not (tmp_path / "pids").exists():
                    time.sleep(0.01)  # another process writes it
                timeout = 0.01
            return super().communicate(input, timeout)

    monkeypatch.setattr(subprocess, "Popen", Begun)
    told = run_pytest(written(tmp_path, ENDLESS))
    assert (told["passed"], told["error"]) == (False, "Timeout")
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        while not gone(pid):  # the kernel takes its moment; the test's own time limit bounds it
            time.sleep(0.01)


def test_a_run_gets_none_of_our_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    seen = "import os\n\ndef test_seen():\n    print(sorted(os.environ))\n    assert False\n"
    told = run_pytest(written(tmp_path, seen))
    assert "'PYTHONDONTWRITEBYTECODE'" in told["said"]
    assert "ANTHROPIC" not in told["said"]
    assert "HOME" in os.environ
    assert "'HOME'" not in told["said"]


def test_no_test_at_all_is_no_success(tmp_path: Path) -> None:
    assert not run_pytest(written(tmp_path, ""))["passed"]


def test_without_pytest_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "find_spec", lambda name: None)
    with pytest.raises(Permanent, match="pip install pytest"):
        run_pytest(tmp_path)
