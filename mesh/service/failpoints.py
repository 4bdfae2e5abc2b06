"""Failpoints: named places between two writes, where a crash hurts most.

The fault drill (`tests/drill/`) ends processes in exactly these places; a call of `failpoint` marks each. It
does nothing, and costs one look at a global, unless `MESH_FAILPOINTS` named a directory as the process
started. A file of the failpoint's name in there is an armed fault. The process that reaches it renames it to
`<failpoint>.<pid>`, so that one file ends one process, and then does to itself what the file says.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Literal, NamedTuple

VARIABLE = "MESH_FAILPOINTS"
"""Names the directory of armed failpoints."""


class Failpoint(NamedTuple):
    """One place."""

    name: str
    """`<kind of process>.<place>`."""
    written: str
    """What is written already."""
    unwritten: str
    """What is not written yet, and must come of it all the same, once."""


class UnknownFailpoint(ValueError):
    """No failpoint has this name."""


FAILPOINTS: dict[str, Failpoint] = {
    failpoint.name: failpoint
    for failpoint in (
        Failpoint("turn.taken", "the inbox event was delivered", "anything of the turn"),
        Failpoint("turn.fenced", "fences behind the earlier rounds", "the first step of the new round"),
        Failpoint("step.ran", "a reading tool or the model has answered", "the answer's record"),
        Failpoint("effect.intended", "an effect's intent", "the effect itself"),
        Failpoint("effect.ran", "the effect, in the world outside", "its result's record"),
        Failpoint("step.recorded", "a step's record", "whatever its value is used for"),
        Failpoint("turn.journaled", "every step of the round", "the proposal"),
        Failpoint("turn.proposed", "the proposal", "the inbox event's acknowledgement"),
        Failpoint("guard.heard", "a proposal or an order, in its queue", "the verdict"),
        Failpoint("guard.withheld", "`facts.withheld`", "the verdict that it belongs to"),
        Failpoint("guard.decided", "the verdict", "its consequence, timer and acknowledgement"),
        Failpoint("guard.due", "an event with a consequence", "the consequence, which is due"),
        Failpoint("guard.followed", "the consequence", "the next one, timer and acknowledgement"),
        Failpoint(
            "guard.ended",
            "the event that ends a turn from outside",
            "the message at `mesh.end.…` that tells its agent",
        ),
        Failpoint("guard.armed", "events and timer", "the acknowledgement"),
        Failpoint("guard.fired", "a fired timer, in its queue", "what is due"),
    )
}
"""Every failpoint by name."""

_named = os.environ.get(VARIABLE)
_armed: Path | None = Path(_named) if _named else None
_passed: dict[str, int] = {}


class Claim(NamedTuple):
    """An armed failpoint that a process reached."""

    failpoint: str
    pid: int
    at: int
    """UTC µs."""


def failpoint(name: str) -> None:
    """Mark a place. Where a fault is armed for it, the call does not return."""
    if _armed is not None:
        _claim(_armed, name)


def arm(directory: Path, name: str, *, passes: int = 0, do: Literal["kill", "stop"] = "kill") -> None:
    """Let the next process that reaches a failpoint kill or stop itself there.

    Args:
        passes: how often a process may go through first; each counts its own.

    Raises UnknownFailpoint.
    """
    if name not in FAILPOINTS:
        raise UnknownFailpoint(f"no such failpoint: {name!r}; one of {', '.join(FAILPOINTS)}")
    whole = directory / f".{name}.new"
    whole.write_text(json.dumps({"passes": passes, "do": do}))
    whole.rename(directory / name)  # nobody sees half of it


def disarm(directory: Path, name: str) -> bool:
    """Take an armed failpoint back; False if a process has claimed it."""
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
        if name in FAILPOINTS and pid.isdecimal():
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
