"""Grounds: what a verdict rested on besides the log. By them, a log can be judged again from a file alone."""

from protocol.wire.assignment import Part
from protocol.wire.config import AgentEntry, BreakerState
from protocol.wire.ids import AgentName


class Candidate(Part, frozen=True, kw_only=True):
    """An agent that a task could go to, as a guard found it."""

    entry: AgentEntry
    breaker: BreakerState = "closed"
    since: int | None = None
    """UTC µs since when its breaker is open; as `Grounds.breaker_since`."""
    until: int | None = None
    served: bool = True


class Grounds(Part, frozen=True, kw_only=True):
    """What a guard knew when it decided."""

    fleet: int = 0
    """Revision of the fleet document."""
    sender: AgentEntry | None = None
    """The agent that proposes, as the fleet file has it; None if it is not an agent there."""
    target: AgentEntry | None = None
    """The agent that the work would go to; None if it is not in the fleet."""
    human: bool = False
    """True if people read the `human` queue."""
    breaker: BreakerState = "closed"
    """Of the target. `half_open`: this very message is what is let through on trial."""
    breaker_since: int | None = None
    """UTC µs since when it is open; None too where it was opened by hand."""
    breaker_until: int | None = None
    """UTC µs from which on somebody may be let through on trial."""
    peers: tuple[AgentName, ...] = ()
    """Where it is open: who else takes what the sender may give."""
    served: bool | None = None
    """True if anybody serves the agent that a wait is for; None if nothing hung on it."""
    longest_s: float | None = None
    """The longest deadline that a request may have: half of what the log keeps."""
    served_since: int | None = None
    """UTC µs since when every look of the guard has found `served` as it is. While the agent is served, the
    span begins no earlier than the round left the queue, or than the queue before it last moved."""
    unbegun: bool = False
    """True if the round that a guard ends by the clock lay in the inbox until then: it cost nothing."""
    candidates: tuple[Candidate, ...] = ()
    """Agents that a plan's tasks could go to, in the fleet's order."""
