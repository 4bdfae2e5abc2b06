"""The handoff object, the only thing that travels between agents; and the refusal of one.

A handoff is frozen, small and self-describing. It carries facts and references, never a transcript. Large
things stay where they are and travel as `Artifact` references. A refusal names its rule, the numbers that it
rests on, and what would be allowed.

The checks at the end find what no type of a field says: in facts, artifacts and budgets from a peer.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from protocol.wire.errors import Malformed
from protocol.wire.ids import AgentName, TurnId, is_label
from protocol.wire.prices import LARGEST_AMOUNT, Moment, Seconds

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


# --- checks -----------------------------------------------------------------------------------------

DEEPEST = 64
"""Lists and objects within each other that a value may have, so that it can be written and read again."""
_NESTED = (dict, list)


def check_facts(facts: Sequence[Fact], reserved: str | None = None) -> None:
    """Raise Malformed for facts that no handoff can hold.

    Args:
        reserved: a key that is not free.
    """
    if not facts:
        return
    keys = [fact.key for fact in facts]
    check_names(keys, "facts")
    if reserved in keys:
        raise Malformed(f"facts: the key `{reserved}` is taken by the request's own text")
    for fact in facts:
        check_nesting(fact.value)
        _check_labels(fact.labels, "facts")


def check_artifacts(artifacts: Sequence[Artifact]) -> None:
    """Raise Malformed for references that no handoff can hold."""
    if not artifacts:
        return
    check_names([artifact.name for artifact in artifacts], "artifacts")
    for artifact in artifacts:
        _check_labels(artifact.labels, "artifacts")


def check_nesting(value: Any) -> None:
    """Raise Malformed for a value that nests deeper than DEEPEST."""
    level = [value] if isinstance(value, _NESTED) else []
    for _ in range(DEEPEST):
        if not level:
            return
        level = [item for node in level for item in _items(node) if isinstance(item, _NESTED)]
    if level:
        raise Malformed(f"a value has more than {DEEPEST} lists and objects within each other")


def check_names(names: Sequence[str], what: str) -> None:
    """Raise Malformed for names of which two are the same, or one is empty or too long."""
    if len(set(names)) != len(names) or not all(0 < len(name) <= 128 for name in names):
        raise Malformed(f"{what}: each needs a name of 1 to 128 characters, and a name only once")


def check_budget(budget: Budget | None, what: str) -> None:
    """Raise Malformed for amounts that nobody can spend."""
    if budget is None:
        return
    asked = (budget.nano_dollars, budget.tokens, budget.model_calls)
    if any(value is not None and not 0 <= value <= LARGEST_AMOUNT for value in asked):
        raise Malformed(f"{what}: a budget must be from 0 to 2^62")


def _check_labels(labels: Sequence[str], what: str) -> None:
    if not all(map(is_label, labels)):
        raise Malformed(f"{what}: a label is 1 to 64 characters of A-Z a-z 0-9 _ . : / -")


def _items(node: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return node.values() if isinstance(node, dict) else node
