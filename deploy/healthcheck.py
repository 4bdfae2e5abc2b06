"""Exit 0 if the service in this container holds an open connection to its bus, else 1.

It needs no credentials and asks the service nothing: it looks for an established TCP connection to a
port that `NATS_URL` names. A service that hangs is found too, since the server drops a client that
leaves its pings unanswered. It holds only where the network namespace is one service's own, as in a
container. Standard library only: it starts every few seconds.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

ESTABLISHED = "01"  # include/net/tcp_states.h of Linux
DEFAULT_PORT = 4222
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def bus_ports(urls: str) -> set[int]:
    """Return the ports in a comma-separated list of NATS URLs; one without a port has 4222."""
    hosts = (url.strip() for url in urls.split(",") if url.strip())
    return {urlsplit(url if "://" in url else f"nats://{url}").port or DEFAULT_PORT for url in hosts}


def connected(table: Iterable[str], ports: set[int]) -> bool:
    """Return whether a line of a /proc/net/tcp table is an established connection to one of `ports`."""
    for line in table:
        _, _, remote, state, *_ = line.split()
        if state == ESTABLISHED and int(remote.rpartition(":")[2], 16) in ports:
            return True
    return False


def main() -> int:
    ports = bus_ports(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))
    lines = (table.read_text().splitlines()[1:] for table in TABLES if table.exists())  # after the heading
    return 0 if any(connected(table, ports) for table in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
