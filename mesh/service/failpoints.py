"""Dangerous windows: named places between two writes, where a crash hurts most.

The fault drill (`tests/drill/`) kills processes in exactly these places; `reached` marks them. It does
nothing, and costs one look at a global, unless `MESH_DRILL_WINDOWS` named a directory as the process
started. Then a file there that is called like the window is an armed fault: the process that reaches it
claims it by renaming it to `<window>.<pid>`, so that one file ends one process, and does to itself what the
file says.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Literal, NamedTuple

VARIABLE = "MESH_DRILL_WINDOWS"
"""Names the directory of armed windows."""


class Window(NamedTuple):
    """One dangerous place."""

    name: str
    """`<kind of process>.<place>`."""
    written: str
    """What is written already."""
    unwritten: str
    """What is not written yet, and must come of it all the same, once."""


class UnknownWindow(ValueError):
    """No window has this name."""


WINDOWS: dict[str, Window] = {
    window.name: window
    for window in (
        Window("turn.taken", "the inbox event was delivered", "anything of the turn"),
        Window("turn.fenced", "fences behind the earlier rounds", "the first step of the new round"),
        Window("step.ran", "a reading tool or the model has answered", "the answer's record"),
        Window("effect.intended", "an effect's intent", "the effect itself"),
        Window("effect.ran", "the effect, in the world outside", "its result's record"),
        Window("step.recorded", "a step's record", "whatever its value is used for"),
        Window("turn.journaled", "every step of the round", "the proposal"),
        Window("turn.proposed", "the proposal", "the inbox event's acknowledgement"),
        Window("guard.heard", "a proposal or an order, in its queue", "the verdict"),
        Window("guard.withheld", "`facts.withheld`", "the verdict that it belongs to"),
        Window("guard.decided", "the verdict", "its consequence, timer and acknowledgement"),
        Window("guard.due", "an event with a consequence", "the consequence, which is due"),
        Window("guard.followed", "the consequence", "the next one, timer and acknowledgement"),
        Window(
            "guard.ended",
            "the event that ends a turn from outside",
            "the message at `mesh.end.…` that tells its agent",
        ),
        Window("guard.armed", "events and timer", "the acknowledgement"),
        Window("guard.fired", "a fired timer, in its queue", "what is due"),
    )
}
"""Every window by name."""

_named = os.environ.get(VARIABLE)
_armed: Path | None = Path(_named) if _named else None
_passed: dict[str, int] = {}


class Claim(NamedTuple):
    """An armed window that a process reached."""

    window: str
    pid: int
    at: int
    """UTC µs."""


def reached(name: str) -> None:
    """Say that this process is in a window; it may not return."""
    if _armed is not None:
        _claim(_armed, name)


def arm(directory: Path, name: str, *, passes: int = 0, do: Literal["kill", "stop"] = "kill") -> None:
    """Let the next process that reaches a window kill or stop itself there.

    Args:
        passes: how often a process may go through first; each counts its own.

    Raises UnknownWindow.
    """
    if name not in WINDOWS:
        raise UnknownWindow(f"no such window: {name!r}; one of {', '.join(WINDOWS)}")
    whole = directory / f".{name}.new"
    whole.write_text(json.dumps({"passes": passes, "do": do}))
    whole.rename(directory / name)  # nobody sees half of it


def disarm(directory: Path, name: str) -> bool:
    """Take an armed window back; False if a process has claimed it."""
    try:
        (directory / name).unlink()
    except FileNotFoundError:
        return False
    return True


def claims(directory: Path) -> list[Claim]:
    """Return the claims that lie in a directory."""
    found = []
    for path in directory.iterdir():
        name, _, pid = path.name.rpartition(".")
        if name in WINDOWS and pid.isdecimal():
            at = json.loads(path.read_text()).get("at", path.stat().st_ctime_ns // 1000)
            found.append(Claim(name, int(pid), at))
    return found


def _claim(directory: Path, name: str) -> None:
    armed = directory / name
    try:
        said = json.loads(armed.read_text())
    except FileNotFoundError:
        return
    if _passed.get(name, 0) < said["passes"]:
        _passed[name] = _passed.get(name, 0) + 1
        return
    claimed = directory / f"{name}.{os.getpid()}"
    try:
        armed.rename(claimed)
    except FileNotFoundError:  # another process was first
        return
    _passed.pop(name, None)
    whole = directory / f".{claimed.name}.new"
    whole.write_text(json.dumps({**said, "at": time.time_ns() // 1000}))
    whole.rename(claimed)
    os.kill(os.getpid(), signal.SIGSTOP if said["do"] == "stop" else signal.SIGKILL)
