"""Policies and their shadows: what decides, since when, and what is tried beside it."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.stores import Revision, differences, revisions
from mesh.errors import Impossible, NotFound, UsageWrong
from mesh.ops.conf import ConfEntry, history
from protocol.wire.config import Policy, policy_hash
from protocol.wire.documents import DocumentInvalid, parse_policy, read_policy
from protocol.wire.shadow import read_shadow
from protocol.wire.subjects import POLICIES, SHADOWS, policy, shadow


class StandingShadow(msgspec.Struct, frozen=True, kw_only=True):
    """A shadow that guards judge by."""

    rev: int
    at: int
    """UTC µs."""
    by: str
    digest: str
    policy: Policy
    differs: dict[str, tuple[Any, Any]]
    """By number that differs: what the policy says, and what the shadow says."""


class StandingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy as it decides now."""

    name: str
    rev: int
    at: int
    """UTC µs."""
    by: str
    digest: str
    """As `policy_hash` in events. Empty if the policy cannot be read: then requests under it are refused."""
    revisions: int
    """How many are kept."""
    shadow: StandingShadow | None = None


class ShownPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy with its numbers, and the revisions of it and of its shadow."""

    standing: StandingPolicy
    policy: Policy
    history: list[ConfEntry]


def policy_at(path: Path, name: str = "") -> Policy:
    """Return the policy in a TOML file: its numbers, or one of a fleet file's. Raises UsageWrong.

    Args:
        name: which one it has to be. Empty: the one that the file names, or `default`.
    """
    try:
        fields: dict[str, Any] = tomllib.loads(path.read_text())
        numbers = fields["policies"][name or "default"] if "policies" in fields else fields
        own = numbers.get("name", "default") if isinstance(numbers, dict) else "default"
        limit = fields.get("human", {}).get("deadline_s")
        if limit is not None and "policies" in fields:
            numbers = {"human_deadline_s": limit, **numbers}
        return parse_policy(numbers, name or own)
    except OSError as missing:
        raise UsageWrong(f"{path}: {missing.strerror}") from missing
    except (
        UnicodeDecodeError,
        tomllib.TOMLDecodeError,
        DocumentInvalid,
        LookupError,
        TypeError,
        AttributeError,
    ) as wrong:
        raise UsageWrong(f"{path} holds no policy{name and f' {name}'}: {wrong}") from wrong


# --- what is there --------------------------------------------------------------------------------


async def policies(bus: Bus) -> list[StandingPolicy]:
    """Return all policies by name, as they are now. Raises BusError."""
    kept: dict[str, list[Revision]] = {}
    for each in await revisions(bus, POLICIES):
        kept.setdefault(each.subject.rpartition(".")[2], []).append(each)
    shadows = {each.subject.rpartition(".")[2]: each for each in await revisions(bus, SHADOWS)}
    return [_standing(name, kept[name], shadows.get(name)) for name in sorted(kept)]


def _standing(name: str, kept: list[Revision], beside: Revision | None) -> StandingPolicy:
    newest, policy = kept[-1], None
    try:
        policy = read_policy(newest.data, name)
    except DocumentInvalid:  # doctor names what is wrong with it
        digest = ""
    else:
        digest = policy_hash(policy)
    return StandingPolicy(
        name=name,
        rev=newest.seq,
        at=newest.at,
        by=newest.by,
        digest=digest,
        revisions=len(kept),
        shadow=None if beside is None else _shadow(name, beside, policy),
    )


def _shadow(name: str, kept: Revision, beside: Policy | None) -> StandingShadow | None:
    """Return a shadow; None if it was ended, or cannot be read: guards then judge by none."""
    try:
        policy = read_shadow(kept.data, name).policy
    except DocumentInvalid:
        return None
    if policy is None:
        return None
    was, would = (whole(each or Policy(name=name)) for each in (beside, policy))
    return StandingShadow(
        rev=kept.seq,
        at=kept.at,
        by=kept.by,
        digest=policy_hash(policy),
        policy=policy,
        differs={place: (a, b) for place, a, b in differences(was, would)},
    )


def whole(policy: Policy) -> dict[str, Any]:
    """Return a policy's numbers as JSON has them, those at their default included."""
    numbers: dict[str, Any] = msgspec.to_builtins(msgspec.structs.asdict(policy))
    return numbers


async def standing(bus: Bus, name: str) -> StandingPolicy:
    """Return one policy as it is now. Raises NotFound, BusError."""
    for each in await policies(bus):
        if each.name == name:
            return each
    raise NotFound(f"there is no policy {name!r}: see mesh policy ls")


async def shown(bus: Bus, name: str) -> ShownPolicy:
    """Return a policy with its numbers and its history. Raises NotFound, Impossible, BusError."""
    found = await standing(bus, name)
    if not found.digest:
        raise Impossible(f"the policy {name} cannot be read: run mesh doctor")
    kept = [each for each in await revisions(bus, policy(name)) if each.seq == found.rev]
    own = [*await history(bus, policy(name)), *await history(bus, shadow(name))]
    return ShownPolicy(
        standing=found,
        policy=read_policy(kept[0].data, name),
        history=sorted(own, key=lambda each: -each.rev),
    )
