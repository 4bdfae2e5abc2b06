"""The machine, for a reader to compare figures with their own; and what a process on it used (Linux)."""

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple

from mesh.local.server import server_binary

_SYNCS = 200


def machine(directory: Path) -> dict[str, str]:
    """Return what this machine is; `directory` lies on the disk that is measured."""
    load = os.getloadavg()
    return {
        "cores": f"{os.cpu_count()} ({_processor()})",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "nats-server": _server_version(),
        "nats-py": version("nats-py"),
        "fsync of 1 KB": f"{_sync_ms(directory):.2f} ms (p50)",
        "load before": f"{load[0]:.2f} {load[1]:.2f} {load[2]:.2f}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _server_version() -> str:
    said = subprocess.run([str(server_binary()), "--version"], capture_output=True, text=True, check=False)
    return said.stdout.strip().rpartition(" ")[2]


def _sync_ms(directory: Path) -> float:
    took = []
    with (directory / "fsync").open("ab") as file:
        for _ in range(_SYNCS):
            started = time.perf_counter()
            file.write(b"x" * 1024)
            file.flush()
            os.fsync(file.fileno())
            took.append((time.perf_counter() - started) * 1e3)
    return statistics.median(took)


# --- what a process used ---------------------------------------------------------------------------

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


def memory_mib(pid: int, what: Literal["VmHWM", "VmRSS", "RssAnon"]) -> float:
    """Return the most resident memory that `pid` has had, that of now, or what of it are no pages of files.

    In MiB; 0 where the system does not say.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(what)), 0.0)
