"""The shadow of a policy: another policy that guards judge by once more, and that decides nothing.

It stands in CONF beside the policy that decides. Guards store where it disagrees, and how often it was asked.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from protocol.wire.config import Policy
from protocol.wire.documents import DocumentInvalid, parse_policy, read


class ShadowEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `mesh.conf.shadow.<policy>` holds. No entry: there was never a shadow."""

    policy: Policy | None = None
    """None: it was stopped, or promoted."""
    report: Mapping[str, Any] = {}
    """By which it was promoted, whole: its digest stands beside the policy that it became."""


def read_shadow(body: bytes, name: str) -> ShadowEntry:
    """Return the shadow of the policy `name`. Raises DocumentInvalid with every mistake."""
    said = read(body, dict[str, Any])
    if unknown := said.keys() - set(ShadowEntry.__struct_fields__):
        raise DocumentInvalid(*(f"{field}: unknown field" for field in sorted(unknown)))
    policy, report = said.get("policy"), said.get("report", {})
    if not isinstance(report, dict):
        raise DocumentInvalid("report: expected an object")
    return ShadowEntry(policy=None if policy is None else parse_policy(policy, name), report=report)


class Judgement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The decision of an event, without ids and digests, as it is compared."""

    type: str
    to: str = ""
    rule: str = ""
    """Refusals: the rule."""
    reason: str = ""
    """A code: why it failed, or was escalated."""
    then: str = ""
    """After a refusal or a failure: `round`, `retry` or `escalation`."""
    withheld: int = 0
    """How much the reader may not see."""


class Disagreement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command that a shadow would have decided otherwise."""

    request: str
    n: int
    """Number of the event that decided it."""
    at: int
    """UTC µs of that event."""
    rev: int
    """The shadow's revision in CONF."""
    digest: str
    """`policy_hash` of the shadow."""
    client: str
    agent: str = ""
    """Whose move it was; empty for a submit."""
    to: str = ""
    """Whom the move would have given the work."""
    was: Judgement
    would: Judgement
    detail: str = ""
    """The shadow's refusal in words, or the policy's own if the shadow refuses nothing."""
    numbers: Mapping[str, Any] = {}
    """The numbers of that refusal."""


class ShadowCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one guard has counted of a shadow since it began. A later count replaces an earlier one."""

    rev: int
    digest: str
    guard: str
    since: int
    """UTC µs when this guard began to count."""
    at: int
    """UTC µs."""
    agreed: int = 0
    disagreed: int = 0
    dropped: int = 0
    """Not judged, since the guard had too much to do."""
    failed: int = 0
    """Not judged, since judging raised an error."""
    unkept: int = 0
    """Disagreements that were counted and not stored: too many a second, or the bus did not take them."""
    stopped: str = ""
    """Why this guard judges by the shadow no more; empty if it does."""

    @property
    def judged(self) -> int:
        return self.agreed + self.disagreed
