"""The fleet: who exists, what each may do, and whom each may hand to.

The admin's `mesh.toml` becomes this document, which guards watch in CONF. It is the authority that
verdicts rest on; what a running agent says of itself (its card) is for display only.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from protocol.breaker import BreakerRules
from protocol.ids import AgentName
from protocol.ranges import SomeSeconds

LEASE_S = 6.0
GUARD_LEASE_S = 3.0
SHORTEST_LEASE_S, LONGEST_LEASE_S = 1.0, 600.0
"""What a fleet file may say. Shorter, and a pause of the process would lose a lease that it is keeping."""
Lease = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_LEASE_S)]
MOST_AT_ONCE = 100_000
MOST_PER_MINUTE = 10_000_000


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


class ModelLimits(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How fast a model may be asked. Agents keep to it by themselves; nothing is judged by it."""

    concurrency: Annotated[int, msgspec.Meta(ge=1, le=MOST_AT_ONCE)] | None = None
    """Requests under way at once, of all processes together."""
    per_minute: Annotated[int, msgspec.Meta(ge=1, le=MOST_PER_MINUTE)] | None = None
    """Requests that begin within a minute, of all processes together."""
    instances: Annotated[int, msgspec.Meta(ge=1, le=MOST_AT_ONCE)] = 1
    """How many processes ask it: each takes that part of the above."""


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
    """By fact key: labels that a fact of this key has, whoever brings it and whatever they say."""
    revision: int = 0

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
