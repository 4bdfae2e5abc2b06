"""Grounds and refusals: what a verdict rests on besides the log, and why a rule refused.

Each event records its `Grounds`, so that a log can be judged again from a file alone. A counterfactual
replaces part of them. A refusal names its rule, the numbers that it rests on, and what would be allowed.
"""

import datetime as dt
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from protocol.wire.config import AgentEntry, BreakerState
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


class Rule(StrEnum):
    """Stable names, in the order in which they are tried; `known_policy` is for submits."""

    KNOWN_POLICY = "known_policy"
    KNOWN_MOVE = "known_move"
    KNOWN_AGENT = "known_agent"
    AGENT_AVAILABLE = "agent_available"
    DEPTH = "depth"
    CYCLE = "cycle"
    HAND_BACK = "hand_back"
    NO_RETURN = "no_return"
    ASKS = "asks"
    BUDGET = "budget"
    CONSTRAINTS = "constraints"
    MUST_CARRY = "must_carry"
    ACTIONS = "actions"
    SIZE = "size"


def moment(at: int) -> str:
    """Return a time (UTC µs) as a sentence has it."""
    try:
        whole = dt.datetime.fromtimestamp(at // 1_000_000, dt.UTC)
    except (OverflowError, ValueError, OSError):  # an entry that was written by hand may say anything
        return f"{at} µs"
    return whole.isoformat().replace("+00:00", "Z")


def breaker_open(target: str | None, grounds: Grounds, instead: str) -> "Refusal":
    """Return the refusal of work for an agent that fails too often.

    Args:
        instead: what could be done at once.
    """
    since, until = grounds.breaker_since, grounds.breaker_until
    numbers: dict[str, Any] = {"target": target, "since": since, "until": until}
    return Refusal(
        rule=Rule.AGENT_AVAILABLE,
        detail=f"{target} has failed too often of late; its breaker is open"
        + ("" if since is None else f" since {moment(since)}"),
        numbers={name: number for name, number in numbers.items() if name == "target" or number is not None},
        hint=instead if until is None else f"{instead}; {target} is tried again from {moment(until)} on",
    )


class Refusal(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Why something was refused, for the agent that asked and for readers of the log."""

    rule: Rule
    detail: str
    """One sentence with the numbers and the path in it."""
    numbers: Mapping[str, Any] = {}
    """The same numbers for programs: `{"depth": 6, "max_depth": 5}`."""
    hint: str = ""
    """What would be allowed instead."""
