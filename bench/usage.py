"""What a process used: CPU time and wake-ups, as Linux counts them; elsewhere nothing is known."""

import os
from collections.abc import Iterable
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
        threads = list((process / "task").iterdir())
        cpu_s = _exact_s(threads) or _ticked_s(process)
        wakeups = sum(_switches(thread / "status") for thread in threads)
    except OSError:
        return Usage()
    return Usage(cpu_s, wakeups)


def _exact_s(threads: Iterable[Path]) -> float:
    """Return the CPU time of threads that are there, to the nanosecond; 0 where the kernel keeps none."""
    try:
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    except OSError:
        return 0.0


def _ticked_s(process: Path) -> float:
    """Return the CPU time of a process to the hundredth of a second."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


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
