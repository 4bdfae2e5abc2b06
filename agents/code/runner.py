"""The real test runner: pytest in a process of its own, with an end, over the files of one workspace.

It gets no variable of ours but the path, no plugin that is installed by chance, and writes nothing beside the
code. It is no sandbox: a project's tests may do anything that the agent's user may.
"""

import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mesh.agent import Permanent

LIMIT_S = 30.0
"""How long one run may take; then it is ended, with all that it started."""
_SAID_CHARS = 4_000
_WHERE = re.compile(r"^(?P<path>[\w./-]+\.py):(?P<line>\d+): (?:in \S+|(?P<error>\w+))", re.MULTILINE)
_ERROR = re.compile(
    r"^E +(?P<error>\w+(?:\.\w+)*(?:Error|Exception|Warning))(?:: (?P<why>.*))?$", re.MULTILINE
)
_ASSERTED = re.compile(r"^E +(?P<why>assert .*)$", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (?P<test>\S+)", re.MULTILINE)
_COUNTED = re.compile(r"(?P<number>\d+) (?P<what>passed|failed|errors?)")


def run_pytest(folder: Path) -> dict[str, Any]:
    """Run all tests under a folder; return if they passed, and if not, which failed, why and where.

    Raises Permanent where pytest is not installed.
    """
    if find_spec("pytest") is None:
        raise Permanent("the code fleet runs tests with pytest: pip install pytest")
    options = ("-q", "--tb=short", "--import-mode=importlib", "--continue-on-collection-errors")
    own = ("-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder))
    command = (sys.executable, "-P", "-m", "pytest", *options, *own, "tests")
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with process:
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # what it started is of its session, too
            said, _ = process.communicate()
            return _told(said, passed=False) | {"error": "Timeout", "why": f"no end within {LIMIT_S:g} s"}
    return _told(said, passed=process.returncode == 0)


def _told(said: str, *, passed: bool) -> dict[str, Any]:
    """Return what pytest printed, in parts: a model need not read the rest."""
    counts = {each["what"].rstrip("s"): int(each["number"]) for each in _COUNTED.finditer(said)}
    told: dict[str, Any] = {"passed": passed, "counts": counts, "said": said[-_SAID_CHARS:]}
    if passed:
        return told
    error, asserted = _ERROR.search(said), _ASSERTED.search(said)
    if error is not None:
        named, why = error["error"], error["why"] or ""
    else:
        named, why = ("AssertionError", asserted["why"]) if asserted is not None else ("", "")
    places = [each for each in _WHERE.finditer(said) if not Path(each["path"]).is_absolute()]
    path, line = (places[-1]["path"], int(places[-1]["line"])) if places else ("", 0)
    failed = [each["test"] for each in _FAILED.finditer(said)]
    return told | {"failed": failed, "error": named, "why": why, "path": path, "line": line}
