"""The documents in CONF: the fleet, policies, and what guards keep there, the freeze and breakers.

The fleet says who exists, what each may do, and whom each may hand to. The admin's `mesh.toml` becomes this
document, which guards watch. It is the authority that verdicts rest on; what a running agent says of itself
(its card) is for display only.

A policy is the rules of a request as numbers: a named, versioned, hashed document. A request is judged by
the document that its `request.opened` embeds, for as long as it lives. So a changed policy changes new
requests only, and a log can be judged from a file.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from protocol.wire.commands import HANDOFF_MOVES
from protocol.wire.handoff import Budget
from protocol.wire.ids import AgentName, Cause, SenderRole, TurnId
from protocol.wire.prices import DAY_S, Bytes, Hops, Seconds, SomeSeconds, Times

LEASE_S = 6.0
GUARD_LEASE_S = 3.0
SHORTEST_LEASE_S, LONGEST_LEASE_S = 1.0, 600.0
"""What a fleet file may say. Shorter, and a pause of the process would lose a lease that it is keeping."""
Lease = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_LEASE_S)]
MOST_AT_ONCE = 100_000
MOST_PER_MINUTE = 10_000_000
BreakerState = Literal["closed", "open", "half_open"]
BreakerSpan = Annotated[float, msgspec.Meta(gt=0, le=DAY_S)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""UTC µs, up to the year 2255: an entry that was written by hand may say anything."""
MOST_PROCESSES = 256
"""Processes in one entry; so many are about 40 KiB."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=max(MOST_AT_ONCE, MOST_PER_MINUTE))]
_Micros = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class AgentEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One agent as verdicts see it. A field that is None puts no limit; an empty one allows nothing."""

    name: AgentName
    clearance: tuple[str, ...] = ()
    """Labels that it may see. A fact or artifact with any other label is withheld from it."""
    intents: tuple[str, ...] | None = None
    """Intents that it takes. A handoff without an intent is taken by everybody."""
    actions: tuple[str, ...] | None = None
    """Tools that its turns may have called."""
    to: tuple[AgentName, ...] | None = None
    """Agents that it may give work to."""
    description: str = ""
    """One line for models and people."""


class BreakerRules(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """When a breaker opens and closes. All times in seconds."""

    failures: Times = 5
    """Different turns that have to fail within `window_s`; 0 switches the breaker off."""
    window_s: BreakerSpan = 60.0
    open_s: BreakerSpan = 30.0
    """How long nothing is admitted before one handoff is tried."""
    trial_s: BreakerSpan = 60.0
    """How long the others wait for what a trial comes to."""


class ModelLimits(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How fast a model may be asked. Agents keep to it by themselves; nothing is judged by it."""

    concurrency: Annotated[int, msgspec.Meta(ge=1, le=MOST_AT_ONCE)] | None = None
    """Requests under way at once, of all processes together."""
    per_minute: Annotated[int, msgspec.Meta(ge=1, le=MOST_PER_MINUTE)] | None = None
    """Requests that begin within a minute, of all processes together."""


class Fleet(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Everybody with credentials, by role. `revision` is the stream sequence it was read at."""

    name: str
    entry: AgentName
    """The agent that a submit goes to when it names none."""
    agents: Mapping[str, AgentEntry] = {}
    clients: tuple[AgentName, ...] = ()
    operators: tuple[AgentName, ...] = ()
    viewers: tuple[AgentName, ...] = ()
    human: bool = False
    """Whether people read the `human` queue. Without one, nothing can be escalated."""
    tiers: tuple[str, ...] = ()
    """Who of the people has an escalation: the first tier at first, the next each time it is raised again."""
    log_max_age_s: SomeSeconds = 30 * 86_400.0
    """How long the log keeps events. A request's deadline is at most half of it, and a request id
    older than a quarter is refused, since its first run may have been forgotten."""
    lease_s: Lease = LEASE_S
    """How long an agent's turn stays its own after its last sign of life; then another instance gets it."""
    guard_lease_s: Lease = GUARD_LEASE_S
    """The same for what a guard has in hand."""
    breaker: BreakerRules = BreakerRules()
    """When an agent that keeps failing is given no more work."""
    breakers: Mapping[AgentName, BreakerRules] = {}
    """The same for agents that have rules of their own."""
    models: Mapping[str, ModelLimits] = {}
    """How fast models may be asked, by id."""
    labels: Mapping[str, tuple[str, ...]] = {}
    """By fact key: labels of every fact of this key, besides those that its bringer says."""
    revision: int = 0

    def role_of(self, name: str) -> SenderRole:
        if name in self.agents:
            return "agent"
        if name in self.clients:
            return "client"
        if name in self.operators:
            return "operator"
        return "viewer" if name in self.viewers else "nobody"

    def tier_for(self, raised: int) -> str:
        """Return the tier that has what was raised so often; empty where the fleet names no tiers.

        What is raised more often than there are tiers stays with the last. Questions and doubts are never
        raised (0): the first tier has them.
        """
        return self.tiers[min(max(raised, 1), len(self.tiers)) - 1] if self.tiers else ""

    def breaker_of(self, agent: AgentName) -> BreakerRules:
        return self.breakers.get(agent, self.breaker)

    @property
    def heartbeat_s(self) -> float:
        """How often an agent says that it is still at its turn: a lost heartbeat costs nothing."""
        return self.lease_s / 3

    @property
    def pull_s(self) -> float:
        """How long an agent's pull lasts: it ends before a lease does, or a frozen agent would keep
        getting back what it lost."""
        return self.lease_s * 2 / 3

    @property
    def guard_pull_s(self) -> float:
        """How long a guard's pull lasts; it is shorter than its lease for the same reason."""
        return self.guard_lease_s * 2 / 3


TOPOLOGIES: Mapping[str, tuple[str, ...]] = {"handoff": HANDOFF_MOVES}
"""The moves of each topology. A request runs under one of them."""


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


class FailedTurn(msgspec.Struct, frozen=True, gc=False):
    """A turn that failed, and when it last did (UTC µs)."""

    turn: TurnId
    at: Moment


class Trial(msgspec.Struct, frozen=True, gc=False):
    """The message whose handoff is let through, and since when (UTC µs)."""

    cause: Cause
    since: Moment


class BreakerEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What `mesh.conf.breaker.<agent>` holds; no entry is a closed breaker without failures."""

    state: BreakerState = "closed"
    failures: tuple[FailedTurn, ...] = ()
    """While closed: those of the window, at most as many as open it."""
    opened_at: Moment | None = None
    """UTC µs. An open one without it was opened by hand, and stays open until it is closed by hand."""
    trial: Trial | None = None


class RatePart(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One process's part of one limit."""

    has: _Count = 0
    """Nobody else may use this much."""
    wants: _Count = 0
    """How much the process could use now."""


class RateShare(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One process's share of one model."""

    concurrency: RatePart = RatePart()
    """Requests under way at once."""
    per_minute: RatePart = RatePart()
    """Requests that begin within a minute."""
    until: _Micros
    """UTC µs. `concurrency` is free then; `per_minute` a minute later, as requests may have begun."""


class RateLimitEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The shares of one model, by process."""

    shares: Annotated[Mapping[str, RateShare], msgspec.Meta(max_length=MOST_PROCESSES)] = {}


class FreezeEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `mesh.conf.freeze` holds; no entry is a mesh that goes on."""

    frozen: bool = False
    by: str = ""
    """The person's name."""
    sender: str = ""
    reason: str = ""
    since: int = 0
    """UTC µs since when it is as it is."""
    at: int = 0
    """UTC µs at which the message was stored that it is from."""
    seq: int = 0
    """That message's place in CTL."""
