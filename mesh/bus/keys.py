"""Nkeys: who a connection is. A seed is a secret; only its public half stands in a configuration.

Seeds live one to a file, `<directory>/<name>.nk`, readable by their owner alone. No seed is ever put
into a log line, an error or a configuration.
"""

import base64
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SEED_SUFFIX = ".nk"
_PUBLIC = re.compile(r"[A-Z2-7]{56}")


class KeyPair(NamedTuple):
    """A user's nkey. `repr` hides the seed, so that a traceback with locals does not show it."""

    seed: str
    public: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


def new_key() -> KeyPair:
    """Return a fresh user key."""
    import nkeys  # by those that use a key: it loads a library of cryptography

    return _pair(bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)).decode())


def _pair(seed: str) -> KeyPair:
    import nkeys

    pair = nkeys.from_seed(bytearray(seed.encode()))
    try:
        return KeyPair(seed, pair.public_key.decode())
    finally:
        pair.wipe()


def is_public_key(text: str) -> bool:
    """Return True if `text` is the public key of a user: base32 of prefix, 32 bytes and their CRC-16."""
    if _PUBLIC.fullmatch(text) is None:
        return False
    import nkeys

    raw = base64.b32decode(text)
    checksum: bytes = nkeys.crc16_checksum(raw[:-2])
    return raw[0] == nkeys.PREFIX_BYTE_USER and raw[-2:] == checksum


def seed_file(directory: Path, name: str) -> Path:
    """Return where the seed of `name` lies."""
    return directory / f"{name}{SEED_SUFFIX}"


def write_key(directory: Path, name: str, key: KeyPair) -> Path:
    """Write the seed of `name`, mode 0600. Raises FileExistsError rather than replace one."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = seed_file(directory, name)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(key.seed + "\n")
    return path


def read_key(path: Path) -> KeyPair:
    """Return the key in a seed file. Raises FileNotFoundError, or ValueError if it holds no user seed."""
    seed = path.read_text().strip()
    try:
        pair = _pair(seed)
    except Exception as broken:
        raise ValueError(f"{path.name} holds no nkey seed") from broken
    if not pair.public.startswith("U"):
        raise ValueError(f"{path.name} holds a seed that is no user's")
    return pair


def keyring(directory: Path, names: Iterable[str]) -> dict[str, KeyPair]:
    """Return the key of each name, and make those that are not in `directory` yet. Idempotent."""
    ring = {}
    for name in names:
        path = seed_file(directory, name)
        if not path.exists():
            write_key(directory, name, new_key())
        ring[name] = read_key(path)
    return ring
