"""The documents in CONF: the fleet, policies, and the breakers that guards keep there.

The fleet lists who exists, what each member may do, and to whom it may hand work. It is made from the admin's
`mesh.toml`, and guards watch it. Verdicts depend on it alone; what a running agent tells about itself (its
card) is for display only.

A policy is the rules of a request as numbers: a named, versioned, hashed document. A request is judged by the
policy that its `request.opened` embeds, as long as it lives. So a changed policy affects new requests only,
and a log can be judged from a file.

The types hold the ranges of numbers. `protocol.wire.documents` reads, and checks what types cannot express.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from protocol.wire.guardrails import Guardrail
from protocol.wire.handoff import Budget
from protocol.wire.ids import (
    AgentName,
    Cause,
    ContinueWith,
    SenderRole,
    TurnId,
)
from protocol.wire.prices import (
    DAY_S,
    Bytes,
    Hops,
    Moment,
    PositiveSeconds,
    Seconds,
    Times,
)

LEASE_S = 6.0
GUARD_LEASE_S = 3.0
SHORTEST_LEASE_S, LONGEST_LEASE_S = 1.0, 600.0
"""Range of leases in a fleet file. With a shorter one, a pause of the process would lose its lease."""
Lease = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_LEASE_S)]
TURN_TIMEOUT_S = 900.0
PARTITIONS, MOST_PARTITIONS = 4, 64
"""Default and largest number of partitions in a fleet file."""
MOST_AT_ONCE = 100_000
MOST_PER_MINUTE = 10_000_000
MOST_OPEN, MOST_MIB = 100_000_000, 1 << 30
LEAST_HANDOFF_BYTES = 1_024  # names, ids and constraints alone take about half of it
BreakerState = Literal["closed", "open", "half_open"]
ToldAtEnd = Literal["usage", "path"]
BreakerSpan = Annotated[float, msgspec.Meta(gt=0, le=DAY_S)]


class AgentEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One agent as verdicts see it. In a field, None means no limit; an empty value allows nothing."""

    name: AgentName
    clearance: tuple[str, ...] = ()
    """Labels that the agent may see. A fact or artifact with any other label is withheld from it."""
    intents: tuple[str, ...] | None = None
    """Intents that the agent takes. Every agent takes a handoff without an intent."""
    actions: tuple[str, ...] | None = None
    """Tools that its turns may call."""
    to: tuple[AgentName, ...] | None = None
    """Agents that it may give work to."""
    description: str = ""
    """One line for models and people."""
    fallback: AgentName | None = None
    """The agent that gets its work, once, when it failed for good or its breaker is open."""

    def takes(self, intent: str | None) -> bool:
        """Return True if the agent takes this intent. Every agent takes work without an intent."""
        return intent is None or self.intents is None or intent in self.intents


class BreakerRules(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """When a breaker opens and closes. All times are in seconds."""

    failures: Times = 5
    """How many different turns must fail within `window_s` to open it; 0 disables the breaker."""
    window_s: BreakerSpan = 60.0
    open_s: BreakerSpan = 30.0
    """How long nothing is admitted before one handoff is let through on trial."""
    trial_s: BreakerSpan = 60.0
    """How long other handoffs wait for the outcome of a trial."""


class ModelLimits(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How fast each process may call a model. Agents comply by themselves; no verdict uses it."""

    concurrency: Annotated[int, msgspec.Meta(ge=1, le=MOST_AT_ONCE)] | None = None
    """Concurrent model requests of each process."""
    per_minute: Annotated[int, msgspec.Meta(ge=1, le=MOST_PER_MINUTE)] | None = None
    """Model requests that each process may begin within a minute."""


class Quota(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How much of the log a client, or a submitting operator, may use. Each guard counts by itself."""

    open_requests: Annotated[int, msgspec.Meta(ge=1, le=MOST_OPEN)] = 10_000
    """Most requests that are not over."""
    mib_per_hour: Annotated[float, msgspec.Meta(gt=0, le=MOST_MIB)] = 1024.0
    """Most log space for events of its requests. After a quiet hour, an hour's worth may be used at once."""


class Fleet(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """All members with credentials, by role. `revision` is the stream sequence at which it was read."""

    name: str
    entry: AgentName
    """The agent that gets submits that name no agent."""
    agents: Mapping[str, AgentEntry] = {}
    clients: tuple[AgentName, ...] = ()
    operators: tuple[AgentName, ...] = ()
    viewers: tuple[AgentName, ...] = ()
    human: bool = False
    """True if people read the `human` queue. Otherwise nothing can be escalated."""
    tiers: tuple[str, ...] = ()
    """Groups of people who get escalations: first the first tier, then the next each time it is raised."""
    log_max_age_s: PositiveSeconds = 30 * 86_400.0
    """How long the log keeps events. A request's deadline is at most half of it. A request id older than a
    quarter of it is refused, since the log may have lost the request's first run."""
    lease_s: Lease = LEASE_S
    """How long an instance keeps a turn after its last sign of life. Then another instance gets it."""
    guard_lease_s: Lease = GUARD_LEASE_S
    """The same for messages that a guard is working on."""
    breaker: BreakerRules = BreakerRules()
    """When an agent that keeps failing gets no more work."""
    breakers: Mapping[AgentName, BreakerRules] = {}
    """Rules of agents that have their own."""
    models: Mapping[str, ModelLimits] = {}
    """How fast models may be called, by model id."""
    labels: Mapping[str, tuple[str, ...]] = {}
    """By fact key, case-insensitively: labels of every fact with this key, besides those that its sender
    gives."""
    revision: int = 0
    artifacts: str = ""
    """The artifact store: a URL or a folder's path; empty for a folder on the process's own machine."""
    memory_max_age_s: PositiveSeconds = 30 * 86_400.0
    """How long a conversation hands a remembered fact to its later requests."""
    quota: Quota = Quota()
    """How much of the log each client may use."""
    quotas: Mapping[AgentName, Quota] = {}
    """Quotas of clients that have their own."""
    partitions: Annotated[int, msgspec.Meta(ge=1, le=MOST_PARTITIONS)] = PARTITIONS
    """Into how many partitions guards divide their messages, by request. Fixed for a mesh's life: a different
    number would move requests between partitions while they are being decided."""
    lane: bool = True
    """True if guards listen on the lane (`mesh.lane.…`). Otherwise every message is stored first."""
    carries: Mapping[AgentName, Mapping[AgentName, Mapping[str, Any]]] = {}
    """By giver and target: the form of the facts that a transfer hands over (`protocol.wire.forms`)."""
    swarms: bool = False
    """True if any policy has the topology `swarm`. Then each intent of an agent has an inbox for offers."""

    def role_of(self, name: str) -> SenderRole:
        if name in self.agents:
            return "agent"
        if name in self.clients:
            return "client"
        if name in self.operators:
            return "operator"
        return "viewer" if name in self.viewers else "nobody"

    def tier_for(self, raised: int) -> str:
        """Return the tier for something raised `raised` times; empty if the fleet names no tiers.

        Once all tiers were tried, it stays with the last. Questions and doubts are never raised (0), so the
        first tier gets them.
        """
        return self.tiers[min(max(raised, 1), len(self.tiers)) - 1] if self.tiers else ""

    def quota_of(self, client: str) -> Quota:
        return self.quotas.get(AgentName(client), self.quota)

    def breaker_of(self, agent: AgentName) -> BreakerRules:
        return self.breakers.get(agent, self.breaker)

    @property
    def heartbeat_s(self) -> float:
        """How often an agent extends its lease. Losing one heartbeat does no harm."""
        return self.lease_s / 3

    @property
    def pull_s(self) -> float:
        """How long an agent's pull lasts. It ends before a lease does, or a frozen agent would keep getting
        back the messages that it lost."""
        return self.lease_s * 2 / 3

    @property
    def guard_pull_s(self) -> float:
        """How long a guard's pull lasts; shorter than its lease for the same reason."""
        return self.guard_lease_s * 2 / 3


class Policy(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A request's rules. All times are in seconds. Counts are inclusive: `max_depth` hops are allowed."""

    name: str = "default"
    version: int = 1
    topology: str = "handoff"
    max_depth: Hops = 5
    """Agent-to-agent hops of a segment, including hand-backs. 3 to 5 is common in the field."""
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
    deadline_s: PositiveSeconds = 86_400.0
    """How long a request may take, unless its submit sets a deadline."""
    turn_timeout_s: PositiveSeconds = TURN_TIMEOUT_S
    """How long one round may take. It counts while a served agent has the round, or while the queue ahead of
    it does not move."""
    unattended_after_s: PositiveSeconds | None = 3_600.0
    """How long a round waits for an agent without any instance before it fails, counted without a break.
    None: until the request's deadline."""
    escalation_sla_s: PositiveSeconds | None = None
    """How long people have before an escalation is raised to the next tier; None for no limit."""
    human_deadline_s: PositiveSeconds | None = None
    """How long people have for each decision. Meanwhile the request's deadline stands still. None: until the
    request's deadline."""
    on_budget: Literal["escalate", "fail"] = "escalate"
    """What happens when a turn has used up its budget, or has used up its rounds by asking for more: a person
    gets the request, or it ends `failed` with `budget_exhausted`."""
    budget: Budget | None = None
    """What a request may spend, unless its submit sets a budget."""
    max_levels: Hops = 3
    """Turns from the root to the deepest task, both included."""
    max_open_tasks: Hops = 8
    """Tasks that one turn may have open at once."""
    max_tasks: Hops = 50
    """Tasks that a request may open in total."""
    max_revisions: Times = 3
    """How often a task may be repeated after feedback."""
    keep_back: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.2
    """Share of a lead's remaining budget that it keeps. Tasks without their own budget split the rest."""
    claim_within_s: PositiveSeconds = 30.0
    """How long an offered task waits for a claim, counted while any agent that may claim it is served."""
    continue_with: ContinueWith = "entry"
    """Who gets the next request of a conversation, unless its submit says so: the fleet's entry agent, or the
    agent that answered or asked last."""
    tell_client: tuple[ToldAtEnd, ...] = ()
    """What the end tells the client besides the answer: what the request cost (`usage`), and which agents had
    it (`path`). Nothing by default: a client need not know how a fleet works inside."""
    max_posts: Times = 100
    """Posts that one turn may put on a swarm's board."""
    max_posted_bytes: Bytes = 1 << 20
    """Total JSON size of all posts of a request, including those that newer posts replaced."""
    guardrails: tuple[Guardrail, ...] = ()
    """The admin's own rules on words and facts: patterns, sizes, what has to be there and what may not."""


def policy_hash(policy: Policy) -> str:
    """Return SHA-256 (hex) over the policy's canonical JSON: sorted keys, without defaults."""
    return hashlib.sha256(msgspec.json.encode(policy, order="deterministic")).hexdigest()


class FailedTurn(msgspec.Struct, frozen=True, gc=False):
    """A failed turn, and when it last failed (UTC µs)."""

    turn: TurnId
    at: Moment


class Trial(msgspec.Struct, frozen=True, gc=False):
    """The message whose handoff is let through on trial, and since when (UTC µs)."""

    cause: Cause
    since: Moment


class BreakerEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The document at `mesh.conf.breaker.<agent>`. Without an entry it is closed and has no failures."""

    state: BreakerState = "closed"
    failures: tuple[FailedTurn, ...] = ()
    """While closed: the failures within the window, at most as many as would open it."""
    opened_at: Moment | None = None
    """UTC µs. An open breaker without it was opened by hand, and stays open until it is closed by hand."""
    trial: Trial | None = None
