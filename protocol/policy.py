"""The policy: the rules of a request as numbers, a named, versioned, hashed document.

A request is judged by the document that its `request.opened` embeds, for as long as it lives: a
changed policy changes new requests only, and a log can be judged from a file.
"""

import hashlib
from typing import Literal

import msgspec

from protocol.handoff import Budget
from protocol.ranges import Bytes, Hops, Seconds, SomeSeconds, Times


class Policy(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """All times in seconds. Counts are inclusive: `max_depth` hops are allowed, one more is not."""

    name: str = "default"
    version: int = 1
    topology: str = "handoff"
    max_depth: Hops = 5
    """Agent-to-agent hops of a segment, hand-backs included. 3 to 5 is what the field uses."""
    max_refusals: Times = 2
    """Rounds that a turn gets after a refusal; the next refusal escalates."""
    max_retries: Times = 2
    """Rounds that a turn gets after a failure; the next failure escalates."""
    retry_backoff_s: Seconds = 1.0
    """Wait before the first retry; it doubles with each, up to `retry_backoff_max_s`."""
    retry_backoff_max_s: Seconds = 60.0
    max_asks: Times = 3
    max_escalations: Times = 3
    max_handoff_bytes: Bytes = 65_536
    deadline_s: SomeSeconds = 86_400.0
    """How long a request may take if its submit does not say."""
    turn_timeout_s: SomeSeconds = 900.0
    """How long one round may take, counted while its agent is served and has it, or while the queue before it
    stands still."""
    unattended_after_s: SomeSeconds | None = 3_600.0
    """How long a round waits for an agent that nobody serves, without a break, before it fails; None: as long
    as the request's deadline lets it."""
    escalation_sla_s: SomeSeconds | None = None
    """How long people have before an escalation is raised again, one tier up; None: no limit."""
    on_budget: Literal["escalate", "fail"] = "escalate"
    """What becomes of a request when a turn has used up its budget, or asks for more than it has left
    until it has no round left: a person gets it, or it ends `failed` with `budget_exhausted`."""
    budget: Budget | None = None
    """What a request may spend if its submit does not say."""


def policy_hash(policy: Policy) -> str:
    """Return SHA-256 (hex) over the policy's canonical JSON: sorted keys, defaults left out."""
    return hashlib.sha256(msgspec.json.encode(policy, order="deterministic")).hexdigest()
