"""Stalls: when the machine let a process of the fleet stand still, though the drill did nothing to it.

A process that gets no time for most of its lease loses its work, as in a pause, and the checks have to know.
So a thread in each process of the drill's own agents looks at the clock all the time. What it slept too long
was a stall. Code that keeps the event loop busy does not stop the thread, and excuses nothing.
"""

import os
import threading
import time

from tests.drill import ledger
from tests.drill.evidence import Fault

KIND = "stall"
LEAST_S = 0.25
"""Shorter ones are not written down: no lease of a drill is lost by them."""
_LOOK_S = 0.05
_watched = 0
"""The process whose thread runs; a fork has none."""


def watch(agent: str) -> None:
    """Write down the stalls of this process, which serves `agent`, from now on. Idempotent."""
    global _watched
    if _watched != os.getpid():
        _watched = os.getpid()
        threading.Thread(target=_look_again_and_again, args=(agent,), name="stalls", daemon=True).start()


def _look_again_and_again(agent: str) -> None:
    while True:
        before, since = time.time_ns() // 1000, time.monotonic()
        time.sleep(_LOOK_S)
        if time.monotonic() - since - _LOOK_S >= LEAST_S:
            now = time.time_ns() // 1000
            ledger.note_stall(Fault(KIND, f"{agent}:{os.getpid()}", agent, before, now, os.getpid()))
