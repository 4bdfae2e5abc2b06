"""The handoff object, the only thing that travels between agents; and the refusal of one.

A handoff is frozen, small and self-describing. It carries facts and references, never a transcript. Large
things stay where they are and travel as `Artifact` references. A refusal names its rule, the numbers that it
rests on, and what would be allowed.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from protocol.wire.ids import AgentName, TurnId
from protocol.wire.prices import Moment, Seconds

TEXT_FACT = "text"
"""The key under which a submit's text travels; a submit may not bring another fact of this name."""


class Fact(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One thing that is known. A handoff holds a key once; another value is a new fact."""

    key: str
    value: Any
    """Any JSON value."""
    labels: tuple[str, ...] = ()
    """What an agent must be cleared for to see it. Labels of a key never fall away in a request."""


class Artifact(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A reference to something large in the user's own store."""

    name: str
    uri: str
    media_type: str = ""
    digest: str = ""
    size: int | None = None
    labels: tuple[str, ...] = ()


class Budget(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What may be spent. None puts no limit on that dimension; a rest may be negative."""

    nano_dollars: int | None = None
    tokens: int | None = None
    model_calls: int | None = None


class Constraints(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Limits for the holder of the work. They only ever narrow on the way down."""

    deadline: Moment | None = None
    """UTC µs."""
    max_resolution_time_s: Seconds | None = None
    """Asked for in a proposal; the guard turns it into `deadline` when it admits."""
    allowed_actions: tuple[str, ...] | None = None
    """Tools that may be called. None: all that the fleet file allows the agent."""
    budget: Budget | None = None
    must_carry: tuple[str, ...] = ()
    """Keys of facts, withheld ones too, that every later handoff must carry unchanged."""
    read_only: bool = False
    """True if no tool with an effect may be called, here or anywhere below."""

    def ends_at(self, now: int) -> int | None:
        """Return the earlier of its deadline and its longest time counted from `now` (all UTC µs)."""
        if self.max_resolution_time_s is None:
            return self.deadline
        span = now + int(self.max_resolution_time_s * 1e6)
        return span if self.deadline is None else min(self.deadline, span)


class Handoff(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The whole of what an agent is given, as the guard admitted it."""

    move: str
    """How the work came here: `submit`, `transfer`, `hand_back`, `escalate`, `resolve` or `delegate`."""
    from_agent: AgentName
    to_agent: AgentName
    parent: TurnId | None = None
    """The turn that gave it; none for a submit."""
    summary: str
    """One line: the goal and the reason."""
    intent: str | None = None
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    constraints: Constraints = Constraints()
    return_to: AgentName | None = None
    """Where a hand-back goes, if that agent is on the path; otherwise to the frame beneath."""
    no_return: bool = False
    """Nobody in or under this turn gives the work back to its giver or anyone beneath."""


class Rule(StrEnum):
    """Stable names, in the order in which they are tried; the first is for submits, the last for claims."""

    __hash__ = str.__hash__  # an Enum's own is written in Python: rules are looked up for every move

    KNOWN_POLICY = "known_policy"
    KNOWN_MOVE = "known_move"
    KNOWN_AGENT = "known_agent"
    AGENT_AVAILABLE = "agent_available"
    LABELS = "labels"
    DEPTH = "depth"
    LEVELS = "levels"
    KNOWN_TASK = "known_task"
    FAN_OUT = "fan_out"
    CAPABLE = "capable"
    CYCLE = "cycle"
    REVISIONS = "revisions"
    HAND_BACK = "hand_back"
    NO_RETURN = "no_return"
    ASKS = "asks"
    OPEN_TASKS = "open_tasks"
    BUDGET = "budget"
    CONSTRAINTS = "constraints"
    MUST_CARRY = "must_carry"
    ACTIONS = "actions"
    READ_ONLY = "read_only"
    SIZE = "size"
    MEMORY = "memory"
    CLAIMED = "claimed"


class Refusal(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Why something was refused, for the agent that asked and for readers of the log."""

    rule: Rule
    detail: str
    """One sentence with the numbers and the path in it."""
    numbers: Mapping[str, Any] = {}
    """The same numbers for programs: `{"depth": 6, "max_depth": 5}`."""
    hint: str = ""
    """What would be allowed instead."""
