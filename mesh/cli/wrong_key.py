"""A key of the wrong role: what the bus refused then is said in words about the key."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mesh.bus.roles import Role
    from mesh.errors import Denied, UsageWrong


class _Asked(NamedTuple):
    """A way on the bus that a command asked for."""

    name: str
    """Whose key was used."""
    roles: tuple[str, ...]
    """Whose was wanted."""


_ASKED: ContextVar[list[_Asked] | None] = ContextVar("asked", default=None)
"""What the command that runs has asked for."""


def note(name: str, roles: tuple[str, ...]) -> None:
    """Take note of whose key a command uses, and of which roles it takes."""
    asked = _ASKED.get()
    if asked is not None:
        asked.append(_Asked(name, roles))


@contextmanager
def wrong_keys_named() -> Iterator[None]:
    """Turn a refusal of the bus that comes of the key's role into a word about the key."""
    asked: list[_Asked] = []
    token = _ASKED.set(asked)
    try:
        yield
    except Exception as error:
        wrong = _of_a_wrong_key(error, asked) if asked else None
        if wrong is None:
            raise
        raise wrong from error
    finally:
        _ASKED.reset(token)


def _of_a_wrong_key(error: BaseException, asked: Sequence[_Asked]) -> "UsageWrong | None":
    """Return what to say instead of an error; None unless it is a refusal that another key would end."""
    from mesh.errors import Denied, MeshError

    if isinstance(error, BaseExceptionGroup):
        known = error.subgroup(MeshError)
        return None if known is None else _of_a_wrong_key(known.exceptions[0], asked)
    if not isinstance(error, Denied):
        return None
    for name, wanted in reversed(asked):
        own = _role_of(name)
        if own in wanted or not any(_allows(role, name, error) for role in wanted):
            continue
        if own is None or not _allows(own, name, error):
            return wrong_key(name, wanted, error)
    return None


def wrong_key(name: str, wanted: Sequence[str], denied: "Denied | None" = None) -> "UsageWrong":
    """Return the error of a command that was given with a key of none of the roles that it takes.

    Args:
        denied: what the bus refused; told where nothing here says which role the name has.
    """
    from mesh.bus.roles import ADMIN
    from mesh.errors import UsageWrong

    roles = [role for role in wanted if role != ADMIN] or [ADMIN]
    needed = f"this needs the key of {_a(' or '.join(roles))} (--as, MESH_CREDENTIALS)"
    own = _role_of(name)
    if own is not None:
        return UsageWrong(f"{name} is {_a(own)}; {needed}")
    return UsageWrong(f"the key of {name} will not do; {needed}" + (f": {denied}" if denied else ""))


def _a(role: str) -> str:
    """Return a role, or several, with its article; there is one admin, and one guard."""
    if role in ("admin", "guard"):
        return f"the {role}"
    return f"{'an' if role[0] in 'aeiou' else 'a'} {role}"


def _role_of(name: str) -> "Role | None":
    """Return the role of a name, as far as a running `mesh dev` or the fleet file here tell."""
    from pathlib import Path

    from mesh.bus.roles import ADMIN, GUARD, Role
    from mesh.errors import MeshError
    from mesh.fleet.file import load_fleet
    from mesh.settings import running_dev

    if name in (ADMIN, GUARD):
        return Role(name)
    dev = running_dev(Path.cwd())
    for role in (Role.CLIENT, Role.VIEWER, Role.OPERATOR):
        if dev is not None and name in getattr(dev, f"{role}s"):
            return role
    try:
        file = load_fleet(Path.cwd())
    except MeshError:
        return None
    for role in (Role.AGENT, Role.CLIENT, Role.VIEWER, Role.OPERATOR):
        if name in getattr(file, f"{role}s"):
            return role
    return None


def _allows(role: str, name: str, denied: "Denied") -> bool:
    """Say whether `name` could do in a role what the bus refused."""
    from mesh.bus.roles import API, OUTSIDE_API, Role, grants

    try:
        granted = grants(Role(role), name)
    except ValueError:  # no name, so that no role is its
        return False
    patterns = granted.subscribe if denied.operation.startswith("subscribe") else granted.publish
    subjects = (denied.subject, denied.subject.replace(API, OUTSIDE_API, 1))  # what viewers call it
    return patterns is None or any(_covers(each, subject) for each in patterns for subject in subjects)


def _covers(pattern: str, subject: str) -> bool:
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, tokens = wanted[:-1], tokens[: len(wanted) - 1] if len(tokens) >= len(wanted) else []
    return len(wanted) == len(tokens) and all(
        each in ("*", token) for each, token in zip(wanted, tokens, strict=True)
    )
