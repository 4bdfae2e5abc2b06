"""What a process used: CPU time and wake-ups, as Linux counts them; elsewhere nothing is known."""

import os
from pathlib import Path
from typing import NamedTuple

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Since the process began, or between two looks."""

    cpu_s: float = 0.0
    wakeups: int = 0
    """How often one of its threads gave the processor up to wait for something."""

    def since(self, before: "Usage") -> "Usage":
        return Usage(self.cpu_s - before.cpu_s, self.wakeups - before.wakeups)


def usage(pid: int) -> Usage:
    """Return what `pid` used so far; nothing where the kernel does not say."""
    process = Path(f"/proc/{pid}")
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        cpu_s = (int(fields[11]) + int(fields[12])) * _TICK_S
        wakeups = sum(_switches(thread / "status") for thread in (process / "task").iterdir())
    except OSError:
        return Usage()
    return Usage(cpu_s, wakeups)


def _switches(status: Path) -> int:
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return 0  # the thread has just ended
    return next((int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches")), 0)


def peak_mib(pid: int) -> float:
    """Return the most resident memory that `pid` has had, in MiB; 0 where the kernel does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)
