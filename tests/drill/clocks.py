"""`python -m tests.drill.clocks SECONDS guard run …`: a guard on a machine whose clock is wrong.

It is SECONDS ahead, or as much behind if the number in its identity is even: the guards of one mesh then
disagree by twice as much. What Python asks for the time in the guard's process gets the wrong one. The
failpoints keep the right time: the drill dates its faults by them.
"""

import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace

from mesh.bus.roles import GUARD
from mesh.cli import main
from mesh.service import failpoints


def guards_off_by(seconds: float) -> dict[str, Sequence[str]]:
    """Return how guards begin whose clocks are so wrong, for `tests.drill.arena.Setting.commands`."""
    return {GUARD: (sys.executable, "-m", __name__, f"{seconds:g}")}


def ahead_s(seconds: float, identity: str) -> float:
    """Return how far the clock of this guard is ahead."""
    number = identity.rpartition("-")[2]
    return -seconds if number.isdigit() and int(number) % 2 == 0 else seconds


def shift(seconds: float) -> None:
    """Put the clock of this process ahead."""
    right, right_ns = time.time, time.time_ns
    vars(failpoints)["time"] = SimpleNamespace(time=right, time_ns=right_ns)
    time.time = lambda: right() + seconds
    time.time_ns = lambda: right_ns() + round(seconds * 1e9)


if __name__ == "__main__":
    _seconds = float(sys.argv.pop(1))
    _named = sys.argv[sys.argv.index("--identity") + 1] if "--identity" in sys.argv else ""
    shift(ahead_s(_seconds, _named))
    main()
