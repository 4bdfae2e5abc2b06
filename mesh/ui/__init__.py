"""The page: requests, people, agents and the mesh in a browser. It needs the extra `handoff-mesh[ui]`.

    async with serving(keys, Options(allow_write=True)) as address: ...

Everything that it shows and does is the operator's API (`mesh.ops`); here it is drawn and guarded.
"""

import contextlib
import hashlib
import ipaddress
import secrets
from collections.abc import AsyncIterator, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mesh.bus.credentials import replace_private, seed_file
from mesh.errors import MeshError, UsageWrong
from mesh.settings import Access

if TYPE_CHECKING:
    from mesh.fleet.file import FleetFile


_NEEDED = ("starlette", "uvicorn", "jinja2")


class UiNotInstalled(MeshError, code="ui.not_installed"):
    """The page's libraries are not installed; the text tells how to get them."""


def require_installed(*needed: str) -> None:
    """Raise UiNotInstalled unless these libraries are installed; by default all that the page needs."""
    missing = [name for name in needed or _NEEDED if find_spec(name) is None]
    if missing:
        raise UiNotInstalled(f"the page needs {', '.join(missing)}: pip install 'handoff-mesh[ui]'")


USUAL_PORT = 8420
LEAST_TOKEN = 16
"""Fewest characters of a token."""


class Keys(NamedTuple):
    """The keys that the server holds. A browser gets none of them."""

    reader: Access
    """Access of a viewer or an operator, for everything that is shown."""
    of: Callable[[str], Access | None]
    """Returns how to reach the bus under a name; None without its key."""
    operator: str | None = None
    """The name under which the page acts."""


def keys_in(url: str, directory: Path, *, reader: str, operator: str | None = None) -> Keys:
    """Return the keys of a mesh on this machine, which are in one folder."""

    def access(name: str) -> Access | None:
        seed = seed_file(directory, name)
        return Access(url, name, seed) if seed.exists() else None

    found = access(reader)
    if found is None:
        raise UsageWrong(f"there is no key of {reader!r} in {directory}")
    return Keys(found, access, operator)


class PageLimits(NamedTuple):
    """Limits on what browsers may use of the page."""

    head_s: float = 10.0
    """For a complete request line and headers."""
    body_s: float = 30.0
    """For a form, once its headers have arrived."""
    stalled_s: float = 60.0
    """For a browser that does not read an answer."""
    waiting: int = 128
    """Connections without a complete request. If one more comes, the oldest is cut."""
    connections: int = 512
    """Connections in all; requests on others are answered with 503."""
    beat_s: float = 15.0
    """How long a live view is silent before it sends a comment, which shows whether the browser is gone."""
    begun_s: float = 3.0
    """How long the chat waits until a message that was just sent is in the log."""
    streams: int = 50
    """Live views at once: each visitor's tab has one."""
    streams_of_one: int = 20
    """Live views of one session at most: a visitor cannot take them all."""


class Options(NamedTuple):
    """How the page is served."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 lets the system choose."""
    token: str | None = None
    """The token that a visitor has to show first; None means none, for tests. A network needs one."""
    session_key: bytes = b""
    """32 random bytes that sign sessions. Empty: made at the start, so that sessions end with the page."""
    ended_sessions: Path | None = None
    """The file that records ended sessions, for a lasting `session_key`."""
    allow_write: bool = False
    by: str = ""
    """The name in which the page acts; empty: each visitor enters one."""
    names: tuple[str, ...] = ()
    """Further host names under which browsers reach the page, as behind a proxy."""
    store: Path | None = None
    """The folder of the index of requests; None for a temporary one."""
    rebuild: bool = False
    """True to rebuild that index from the log."""
    file: "FleetFile | None" = None
    """The fleet file that doctor compares the server with."""
    monitor: str | None = None
    """URLs of the servers' monitoring, separated by commas."""
    limits: PageLimits = PageLimits()

    @property
    def is_loopback(self) -> bool:
        """Return True if only this machine can reach the page."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check(self) -> None:
        """Raise UsageWrong for a page that others on the network could open, or for a short token."""
        if self.token is not None and len(self.token) < LEAST_TOKEN:
            raise UsageWrong(f"the page's token has {LEAST_TOKEN} characters or more")
        if not self.is_loopback and not self.token:
            raise UsageWrong(
                f"on {self.host} the page can be reached from elsewhere: give it a token (--token-file FILE)"
            )


class Secret(NamedTuple):
    """A token that cannot be guessed, and the key that signs the sessions of those who show it."""

    token: str
    session_key: bytes


def secret(path: Path | None = None) -> Secret:
    """Return a new secret.

    Args:
        path: a file that only its owner can read, for a lasting secret: open tabs and bookmarks then outlive
            the page's process.
    """
    token = secrets.token_urlsafe(24)
    if path is not None and path.exists():
        token = path.read_text()
    elif path is not None:
        replace_private(path, token.encode())
    return Secret(token, hashlib.sha256(f"sessions of {token}".encode()).digest())


@contextlib.asynccontextmanager
async def serving(keys: Keys, options: Options) -> AsyncIterator[str]:
    """Serve the page while the block runs; yield its address.

    Raises UiNotInstalled, UsageWrong for unsafe options and for a port that is taken, and as
    `Access.connect`.
    """
    require_installed()
    from mesh.ui.server import served

    async with served(keys, options) as address:
        yield address
