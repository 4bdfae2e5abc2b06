"""The world: everything that a verdict rests on that is not in the request's own log.

Each event records its `Grounds`, so that a log can be judged again from a file alone; a
counterfactual replaces part of them.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from protocol.wire.config import AgentEntry, BreakerState, Policy
from protocol.wire.ids import AgentName


class Grounds(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What was known of the fleet when a verdict was given."""

    fleet: int = 0
    """Revision of the fleet document."""
    sender: AgentEntry | None = None
    """The agent that proposes, as the fleet file has it; None if it is not an agent there."""
    target: AgentEntry | None = None
    """The agent that the work would go to; None if it is not in the fleet."""
    human: bool = False
    """Whether people read the `human` queue."""
    breaker: BreakerState = "closed"
    """Of the target. `half_open`: this very message is what is let through on trial."""
    breaker_since: int | None = None
    """UTC µs since when it is open; None too where it was opened by hand."""
    breaker_until: int | None = None
    """UTC µs from which on somebody may be let through on trial."""
    peers: tuple[AgentName, ...] = ()
    """Where it is open: who else takes what the sender may give."""
    served: bool | None = None
    """Whether anybody serves the agent that a wait is for; None if nothing hung on it."""
    longest_s: float | None = None
    """The longest deadline that a request may have: half of what the log keeps."""
    served_since: int | None = None
    """UTC µs since when every look of the guard has found `served` as it is. While the agent is served, the
    span begins no earlier than the round left the queue, or than the queue before it last moved. None: in
    older logs, which told one look alone."""
    unbegun: bool = False
    """Whether the round that a guard ends by the clock lay in the inbox until then: it cost nothing."""


class World(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`Grounds`, and what an event shows elsewhere: its time, its salt, the documents it embeds."""

    now: int
    """UTC µs; whoever builds a world sees to it that it is not before the head's."""
    salt: str
    """32 hex digits, fresh for every event."""
    grounds: Grounds = Grounds()
    policy: Policy | None = None
    """For a submit: the policy it names; None if there is none of that name."""
    prices: Mapping[str, Any] | None = None
    """For a submit: prices of the fleet's models, which the request keeps."""
    trace: str = ""
    """W3C `traceparent` of the span that decides; empty where nothing is traced. No verdict rests on it."""
