"""The page: requests, people, agents and the mesh in a browser. It needs the extra `handoff-mesh[ui]`.

    async with serving(keys, Options(allow_write=True)) as address: ...

Everything that it shows and does is the operator's API (`mesh.ops`); here it is drawn, and guarded.
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
    """The page's libraries are not installed; the text says how to get them."""


def require_installed(*needed: str) -> None:
    """Raise UiNotInstalled unless these libraries are there; by default all that the page needs."""
    missing = [name for name in needed or _NEEDED if find_spec(name) is None]
    if missing:
        raise UiNotInstalled(f"the page needs {', '.join(missing)}: pip install 'handoff-mesh[ui]'")


USUAL_PORT = 8420
LEAST_TOKEN = 16
"""Characters of a token."""


class Keys(NamedTuple):
    """The keys that the server holds. A browser gets none of them."""

    reader: Access
    """A viewer's or an operator's access, for everything that is shown."""
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


class PageLimits(NamedTuple):
    """What browsers may take of the page."""

    head_s: float = 10.0
    """For a request's line and headers, whole."""
    body_s: float = 30.0
    """For a form, once its head is there."""
    stalled_s: float = 60.0
    """For a browser that reads nothing of an answer."""
    waiting: int = 128
    """Connections without a whole request. If one more comes, the oldest is cut."""
    connections: int = 512
    """Connections in all; requests on others are answered with 503."""
    beat_s: float = 15.0
    """How long a live view is silent before it sends a comment, which shows whether the browser is gone."""
    streams: int = 50
    """Live views at once: each visitor's tab has one."""
    streams_of_one: int = 20
    """The most of one session: a visitor cannot take them all."""


class Options(NamedTuple):
    """How the page is served."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 lets the system choose."""
    token: str | None = None
    """The token that a visitor has to show first; None, for tests: none. A network needs one."""
    session_key: bytes = b""
    """32 random bytes that sign sessions. Empty: made anew, so that sessions end with the page."""
    ended_sessions: Path | None = None
    """The file that keeps which sessions were ended, for a `session_key` that lasts."""
    allow_write: bool = False
    by: str = ""
    """In whose name the page acts; empty: each visitor says it once."""
    names: tuple[str, ...] = ()
    """Further host names under which browsers reach the page, as behind a proxy."""
    store: Path | None = None
    """The folder of the index of requests; None: a temporary one."""
    rebuild: bool = False
    """Make that index anew from the log."""
    file: "FleetFile | None" = None
    """For doctor, to compare the server with."""
    monitor: str | None = None
    """URLs of the servers' monitoring, separated by commas."""
    limits: PageLimits = PageLimits()

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
        """Raise UsageWrong for a page that others on the network could open, or a token that is short."""
        if self.token is not None and len(self.token) < LEAST_TOKEN:
            raise UsageWrong(f"the page's token has {LEAST_TOKEN} characters or more")
        if not self.is_loopback and not self.token:
            raise UsageWrong(
                f"on {self.host} the page can be reached from elsewhere: give it a token (--token-file FILE)"
            )


class Secret(NamedTuple):
    """A token that nobody could guess, and the key that signs the sessions of those who show it."""

    token: str
    session_key: bytes


def secret(path: Path | None = None) -> Secret:
    """Return a secret made anew.

    Args:
        path: of a file, which only its owner can read, for one that lasts: open tabs and bookmarks then
            outlive the page's process.
    """
    token = secrets.token_urlsafe(24)
    if path is not None and path.exists():
        token = path.read_text()
    elif path is not None:
        replace_private(path, token.encode())
    return Secret(token, hashlib.sha256(f"sessions of {token}".encode()).digest())


@contextlib.asynccontextmanager
async def serving(keys: Keys, options: Options) -> AsyncIterator[str]:
    """Serve the page while the block runs; give its address.

    Raises UiNotInstalled, UsageWrong for options that would be unsafe and for a port that is taken, and as
    `Access.connect`.
    """
    require_installed()
    from mesh.ui.server import served

    async with served(keys, options) as address:
        yield address
