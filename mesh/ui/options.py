"""What the page is started with: whose keys its server holds, and who may do what with them."""

import contextlib
import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mesh.bus.credentials import seed_file
from mesh.errors import UsageWrong
from mesh.settings import Access

if TYPE_CHECKING:
    from mesh.fleet.file import FleetFile

USUAL_PORT = 8420


class Keys(NamedTuple):
    """Whose keys the server holds. A browser gets none of them."""

    reader: Access
    """Of a viewer or an operator: for everything that is shown."""
    of: Callable[[str], Access | None]
    """Returns how to get on the bus as a name; None if its key is not at hand."""
    operator: str | None = None
    """Under whose name the page acts."""


def keys_in(url: str, directory: Path, *, reader: str, operator: str | None = None) -> Keys:
    """Return the keys of a mesh on this machine, which lie in one folder."""

    def access(name: str) -> Access | None:
        seed = seed_file(directory, name)
        return Access(url, name, seed) if seed.exists() else None

    found = access(reader)
    if found is None:
        raise UsageWrong(f"there is no key of {reader!r} in {directory}")
    return Keys(found, access, operator)


class Options(NamedTuple):
    """How the page is served."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 lets the system choose."""
    token: str | None = None
    """What a visitor has to show first. Needed where the host is not this machine's loopback."""
    allow_write: bool = False
    by: str = ""
    """In whose name the page acts; empty: each visitor says it once."""
    names: tuple[str, ...] = ()
    """Further host names under which browsers reach the page, as behind a proxy."""
    store: Path | None = None
    """The folder of the projection; None: a temporary one."""
    rebuild: bool = False
    """Make the projection anew from the log."""
    file: "FleetFile | None" = None
    """For doctor, to compare the server with."""
    monitor: str | None = None
    """URLs of the servers' monitoring, separated by commas."""

    @property
    def is_loopback(self) -> bool:
        """Return True if nobody but this machine can reach the page."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check(self) -> None:
        """Raise UsageWrong for a page that anybody on the network could open."""
        if not self.is_loopback and not self.token:
            raise UsageWrong(
                f"on {self.host} the page can be reached from elsewhere: give it a token (--token-file FILE)"
            )


def free_port(host: str) -> int:
    """Return the usual port if it is free, else 0, so that the system chooses."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((host, USUAL_PORT))
            return USUAL_PORT
    return 0
