"""Failpoints: named places between two writes, where a crash hurts most.

The fault drill (`tests/drill/`) lists them and ends processes in exactly these places; a call of `failpoint`
marks each. It does nothing, and costs one lookup of a global, unless `MESH_FAILPOINTS` named a directory when
the process started. A file with the failpoint's name in it is an armed fault. The process that reaches it
renames it to `<failpoint>.<pid>`, so that one file ends one process, and then does what the file says.
"""

import json
import os
import signal
import time
from pathlib import Path

VARIABLE = "MESH_FAILPOINTS"
"""Names the directory of armed failpoints."""

_named = os.environ.get(VARIABLE)
_armed: Path | None = Path(_named) if _named else None
_passed: dict[str, int] = {}


def failpoint(name: str) -> None:
    """Mark a place. If a fault is armed for it, the call does not return."""
    if _armed is not None:
        _claim(_armed, name)


def _claim(directory: Path, name: str) -> None:
    armed = directory / name
    try:
        fault = json.loads(armed.read_text())
    except FileNotFoundError:
        return
    if _passed.get(name, 0) < fault["passes"]:
        _passed[name] = _passed.get(name, 0) + 1
        return
    claimed = directory / f"{name}.{os.getpid()}"
    try:
        armed.rename(claimed)
    except FileNotFoundError:  # another process was first
        return
    _passed.pop(name, None)
    whole = directory / f".{claimed.name}.new"
    whole.write_text(json.dumps({**fault, "at": time.time_ns() // 1000}))
    whole.rename(claimed)
    os.kill(os.getpid(), signal.SIGSTOP if fault["do"] == "stop" else signal.SIGKILL)
