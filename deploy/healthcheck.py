"""Exit 0 if the service in this container takes work, else 1; the reasons go to standard output.

It asks the service's own `/readyz` where `MESH_HEALTH` says that it answers, as the image does. Without
that it looks whether the service holds an open connection to its bus: for an established TCP connection
to a port that `NATS_URL` names, which needs no credentials and no answer, and holds only where the
network namespace is one service's own. Standard library only: it starts every few seconds.
"""

import os
import sys
from collections.abc import Iterable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

ESTABLISHED = "01"  # include/net/tcp_states.h of Linux
DEFAULT_PORT = 4222
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
PATIENCE_S = 2.0


def ready(address: str) -> bool:
    """Return whether the service that answers at HOST:PORT takes work; say why not."""
    host, _, port = address.rpartition(":")
    bare = host.strip("[]")
    connection = HTTPConnection(ANYWHERE.get(bare, bare), int(port), timeout=PATIENCE_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        sys.stdout.write(answer.read().decode("utf-8", "replace"))
        return answer.status == 200
    except (OSError, HTTPException) as silent:
        sys.stdout.write(f"no answer from {address}: {silent}\n")
        return False
    finally:
        connection.close()


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
    address = os.environ.get("MESH_HEALTH")
    if address:
        return 0 if ready(address) else 1
    ports = bus_ports(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))
    lines = (table.read_text().splitlines()[1:] for table in TABLES if table.exists())  # after the heading
    return 0 if any(connected(table, ports) for table in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
