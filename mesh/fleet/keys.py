"""Keys of members: which are valid, and how one is replaced without downtime.

A member has one key, or two while its key is replaced. `keys/NAME.nk` has the seed to use. As long as
`keys/NAME.old.pub` is there, the server's accounts list the key before it, too. Each step can be repeated:
one that was cut short is finished, and one that was done changes nothing. Admins that work at once on one
folder wait for each other.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from mesh.bus.credentials import (
    OLD_SUFFIX,
    PUBLIC_SUFFIX,
    new_key,
    old_keys,
    read_key,
    replace_private,
    seed_file,
)
from mesh.bus.roles import Role, members
from mesh.errors import Impossible, NotFound
from mesh.fleet.alone import alone
from mesh.fleet.file import FleetFile
from mesh.fleet.setup import KEYS, prepare_held


class MemberKeys(msgspec.Struct, frozen=True):
    """The keys of one member that the accounts list."""

    name: str
    role: Role
    key: str | None
    """Public key; None if there is none yet."""
    written_at: int | None
    """When its seed was written (UTC µs); None if the seed is elsewhere."""
    old: str | None
    """Public key before, which is valid until it is retired."""


def keys_of(file: FleetFile, directory: Path) -> Iterator[MemberKeys]:
    """Yield the keys of every member, given the folder that `prepare` writes to.

    Raises Impossible for a file that holds no seed.
    """
    given = file.given_keys
    for role, name in members(file.fleet):
        path = seed_file(directory / KEYS, name)
        if name in given:
            yield MemberKeys(name, role, given[name], None, None)
        elif not path.exists():
            yield MemberKeys(name, role, None, None, None)
        else:
            current, written_at = _public(path), path.stat().st_mtime_ns // 1000
            yield MemberKeys(name, role, current, written_at, _old(directory, name, current))


def rotate(file: FleetFile, directory: Path, name: str) -> tuple[MemberKeys, bool]:
    """Give a member a new key beside its own, and write the accounts; return both, and if anything changed.

    A member that has two keys keeps them. Raises NotFound, Impossible.
    """
    with alone(directory):
        before = _one(file, directory, name)
        if before.old is None:
            path = seed_file(directory / KEYS, name)
            replace_private(path.with_name(f"{name}{OLD_SUFFIX}"), f"{before.key}\n".encode())
            replace_private(path, f"{new_key().seed}\n".encode())
        prepare_held(file, directory)
        return _one(file, directory, name), before.old is None


def retire(file: FleetFile, directory: Path, name: str) -> tuple[MemberKeys, str | None]:
    """Take a member's old key out of the accounts; return what is left, and the old key if there was one.

    The note of the old key becomes `NAME.pub`, in one step. From then on any setup takes it out of the
    accounts, so one that is cut short after that is finished by the next. Raises NotFound, Impossible.
    """
    with alone(directory):
        before = _one(file, directory, name)
        noted = directory / KEYS / f"{name}{OLD_SUFFIX}"
        public = directory / KEYS / f"{name}{PUBLIC_SUFFIX}"
        if before.old is not None:
            noted.replace(public)
        else:
            noted.unlink(missing_ok=True)
        last = public.read_text().strip() if public.is_file() else before.key
        prepare_held(file, directory)
        return _one(file, directory, name), None if last == before.key else last


def _one(file: FleetFile, directory: Path, name: str) -> MemberKeys:
    """Return the keys of a member whose seed is here. Raises NotFound, Impossible."""
    found = next((each for each in keys_of(file, directory) if each.name == name), None)
    if found is None:
        raise NotFound(f"there is no member {name!r} in the fleet")
    if name in file.given_keys:
        raise Impossible(
            f"the seed of {name} is not here, and the fleet file has its public key: make a new key where "
            f"the seed is, and put its public half into the file as `nkey`"
        )
    if found.key is None:
        raise Impossible(f"{name} has no key in {directory / KEYS} yet: run `mesh setup --out {directory}`")
    return found


def _old(directory: Path, name: str, current: str) -> str | None:
    """Return a member's old key. One that is current was noted, and then no new one was written."""
    old = old_keys(directory / KEYS, (name,)).get(name)
    return None if old == current else old


def _public(path: Path) -> str:
    try:
        return read_key(path).public
    except (OSError, ValueError) as wrong:
        raise Impossible(f"{path}: {wrong}") from wrong
