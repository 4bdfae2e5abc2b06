"""The machine: what a reader has to know to compare figures with their own."""

import os
import platform
import statistics
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

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
