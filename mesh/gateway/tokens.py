"""Bearer tokens: who may call the gateway, as which client of the fleet, and how much.

A token is shown once, when it is made. The file holds its SHA-256. A token is 32 random bytes, so nothing
can be guessed from the digest, and no slow hash is needed. A running gateway reads the file again when it has
changed, so a new token is good at once, and a revoked one is not.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from mesh.bus.credentials import replace_private
from mesh.errors import NotFound, UsageWrong
from mesh.ops.checks import web_url
from mesh.ops.delivery import new_secret
from mesh.service.logs import get_logger
from protocol.wire.ids import NAME_RULE, is_name

_log = get_logger(__name__)

PREFIX = "mesh_"
"""How every token begins, so that scanners for leaked secrets can know it."""
_ID_CHARS = 8


class TokenLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the callers with one token may use. The fleet file's quotas limit its client's open requests."""

    per_second: Annotated[float, msgspec.Meta(gt=0)] = 50.0
    """Requests a second over a longer time. Twice as many may come at once."""
    body_kib: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 240
    """Largest body. A larger request than this would not fit into a message of the bus."""
    streams: Annotated[int, msgspec.Meta(ge=0)] = 1_000
    """Open streams of events."""


class TokenHook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the questions and ends of a token's requests are posted."""

    url: str
    secret: str
    """Key of the signatures, as Standard Webhooks writes it. It has to be here: it signs each post."""

    def __repr__(self) -> str:
        return f"TokenHook(url={self.url!r})"


class TokenEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One token, as the file holds it."""

    id: str
    """Names the token in lists, logs and `revoke`. It is no secret."""
    client: str
    """The client of the fleet that its callers are."""
    sha256: str
    made: int
    """UTC s."""
    note: str = ""
    """What it is for."""
    limits: TokenLimits = TokenLimits()
    hook: TokenHook | None = None


class _TokenFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    tokens: tuple[TokenEntry, ...]


def read_tokens(path: Path) -> tuple[TokenEntry, ...]:
    """Return the tokens in a file; none if there is no file. Raises UsageWrong for another file."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_TokenFile)
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise UsageWrong(f"{path} cannot be read as a file of tokens: {wrong}") from wrong
    if file.v != 1:
        raise UsageWrong(f"{path} is of form {file.v}, and this build knows form 1")
    return file.tokens


def add_token(
    path: Path, client: str, *, note: str = "", limits: TokenLimits | None = None, post: str | None = None
) -> tuple[str, TokenEntry]:
    """Make a token for a client of the fleet; return it, and its entry. Raises UsageWrong.

    Args:
        post: the URL to which the questions and ends of its requests are posted.
    """
    if not is_name(client):
        raise UsageWrong(f"not a client's name: {client!r}; {NAME_RULE}")
    token = f"{PREFIX}{secrets.token_urlsafe(32)}"
    entry = TokenEntry(
        id=secrets.token_hex(_ID_CHARS // 2),
        client=client,
        sha256=_digest(token),
        made=int(time.time()),
        note=note,
        limits=limits or TokenLimits(),
        hook=None if post is None else TokenHook(url=web_url(post, "--post"), secret=new_secret()),
    )
    with _held(path):
        _write(path, (*read_tokens(path), entry))
    return token, entry


def revoke_token(path: Path, id_: str) -> TokenEntry:
    """Remove a token from the file; return its entry. Raises NotFound, UsageWrong."""
    with _held(path):
        tokens = read_tokens(path)
        found = next((each for each in tokens if each.id == id_), None)
        if found is None:
            known = ", ".join(each.id for each in tokens) or "none"
            raise NotFound(f"no token {id_!r} in {path}; there are: {known}")
        _write(path, tuple(each for each in tokens if each is not found))
    return found


def _write(path: Path, tokens: tuple[TokenEntry, ...]) -> None:
    replace_private(path, msgspec.json.format(msgspec.json.encode(_TokenFile(1, tokens)), indent=2))


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Keep other processes from changing the file meanwhile. Raises UsageWrong."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as wrong:
        raise UsageWrong(f"{path.parent} cannot be used: {wrong.strerror}") from wrong
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class TokenBook:
    """The tokens of a running gateway. Raises UsageWrong if the file cannot be read at the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._by_digest: Mapping[str, TokenEntry] = {}
        self._read(read_tokens(path))

    @property
    def clients(self) -> frozenset[str]:
        """The clients that any token stands for."""
        self._refresh()
        return frozenset(each.client for each in self._by_digest.values())

    def find(self, token: str) -> TokenEntry | None:
        """Return the entry of a token; None if it is unknown or revoked."""
        self._refresh()
        return self._by_digest.get(_digest(token))

    @property
    def is_there(self) -> bool:
        """Return True if the file exists. While it does not, no token is good."""
        self._refresh()
        return self._seen is not None

    def entry(self, id_: str) -> TokenEntry | None:
        """Return the entry of a token's id; None if it was revoked."""
        self._refresh()
        return next((each for each in self._by_digest.values() if each.id == id_), None)

    def _refresh(self) -> None:
        if self._stamp() != self._seen:
            try:
                self._read(read_tokens(self._path))
            except UsageWrong as wrong:  # the tokens of before stay good until somebody mends the file
                self._seen = self._stamp()
                _log.error("gateway_tokens_unreadable", detail=str(wrong))

    def _read(self, tokens: tuple[TokenEntry, ...]) -> None:
        self._seen = self._stamp()
        self._by_digest = {each.sha256: each for each in tokens}

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


class CallRates:
    """Counts the calls of each token: as many as its limit a second, and twice as many at once."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}
        """By token: how many calls are left, and when that was so (s, monotonic)."""

    def wait_s(self, token: TokenEntry, now: float) -> float:
        """Count a call. Return 0, or the seconds until the next one is allowed; then it does not count."""
        rate = token.limits.per_second
        most = max(2 * rate, 1.0)
        left, at = self._left.get(token.id, (most, now))
        left = min(most, left + (now - at) * rate)
        if left < 1.0:
            self._left[token.id] = left, now
            return (1.0 - left) / rate
        self._left[token.id] = left - 1.0, now
        return 0.0
