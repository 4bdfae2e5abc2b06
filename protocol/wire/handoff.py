"""The handoff object, the only thing that travels between agents, and the refusal of a move.

A handoff is frozen, small and self-describing. It carries facts and references, never a transcript. Large
data stays where it is and travels as an `Artifact` reference. A refusal names its rule, the numbers behind
it, and what would be allowed.

The checks at the end cover what field types cannot express, for facts, artifacts and budgets from a peer.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from protocol.wire.errors import Malformed
from protocol.wire.ids import AgentName, TurnId, is_label
from protocol.wire.prices import LARGEST_AMOUNT, Moment, Seconds

TEXT_FACT = "text"
"""Key of the fact that holds a submit's text. A submit may not contain another fact with this key."""


class Fact(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One known thing. A handoff holds each key once; a different value is a new fact."""

    key: str
    value: Any
    """Any JSON value."""
    labels: tuple[str, ...] = ()
    """An agent must be cleared for all of them to see the fact. Within a request, a key never loses a
    label."""


class Artifact(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A reference to large data in the user's own store."""

    name: str
    uri: str
    media_type: str = ""
    digest: str = ""
    size: int | None = None
    labels: tuple[str, ...] = ()


class Budget(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What may be spent. None means no limit in that dimension. What is left of a budget may be negative."""

    nano_dollars: int | None = None
    tokens: int | None = None
    model_calls: int | None = None


class Constraints(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Limits for the holder of the work. They only ever get narrower on the way down."""

    deadline: Moment | None = None
    """UTC µs."""
    max_resolution_time_s: Seconds | None = None
    """Set in a proposal. The guard turns it into `deadline` when it admits the move."""
    allowed_actions: tuple[str, ...] | None = None
    """Tools that may be called. None: all that the fleet file allows the agent."""
    budget: Budget | None = None
    must_carry: tuple[str, ...] = ()
    """Keys of facts that every later handoff must carry unchanged, including withheld ones."""
    read_only: bool = False
    """True if no tool with an effect may be called, by this turn or any below it."""

    def ends_at(self, now: int) -> int | None:
        """Return the earlier of the deadline and `now` plus the longest time (UTC µs); None for no limit."""
        if self.max_resolution_time_s is None:
            return self.deadline
        span = now + int(self.max_resolution_time_s * 1e6)
        return span if self.deadline is None else min(self.deadline, span)


FALLBACK: Final = "fallback"
"""The move by which a guard gives a failed turn's work to its agent's fallback."""


class Handoff(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Everything an agent is given, as the guard admitted it."""

    move: str
    """How it came here: `submit`, `transfer`, `hand_back`, `fallback`, `escalate`, `resolve`, `delegate`."""
    from_agent: AgentName
    to_agent: AgentName
    parent: TurnId | None = None
    """The turn that gave the work; none for a submit."""
    summary: str
    """One line: the goal and the reason."""
    intent: str | None = None
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    constraints: Constraints = Constraints()
    return_to: AgentName | None = None
    """Where a hand-back goes if that agent is on the path; otherwise it goes to the frame beneath."""
    no_return: bool = False
    """True if no turn from here on may give the work back to its giver or any frame beneath."""


class Rule(StrEnum):
    """Stable names, in the order in which rules are checked: the first for submits, the last for claims."""

    __hash__ = str.__hash__  # Enum's own is pure Python, and rules are looked up for every move

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
    FORM = "form"
    ACTIONS = "actions"
    READ_ONLY = "read_only"
    SIZE = "size"
    GUARDRAIL = "guardrail"
    MEMORY = "memory"
    CLAIMED = "claimed"


class Refusal(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Why a move or submit was refused, for the agent that asked and for readers of the log."""

    rule: Rule
    detail: str
    """One sentence that includes the numbers and the path."""
    numbers: Mapping[str, Any] = {}
    """The same numbers for programs: `{"depth": 6, "max_depth": 5}`."""
    hint: str = ""
    """What would be allowed instead."""


# --- checks -----------------------------------------------------------------------------------------

DEEPEST = 64
"""Deepest nesting of lists and objects in a value, so that it can be written and read again."""
_NESTED = (dict, list)


def check_facts(facts: Sequence[Fact], reserved: str | None = None) -> None:
    """Raise Malformed if a handoff cannot hold these facts.

    Args:
        reserved: a key that is already taken.
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
    """Raise Malformed if a handoff cannot hold these references."""
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
        raise Malformed(f"a value nests more than {DEEPEST} lists and objects")


def check_names(names: Sequence[str], what: str) -> None:
    """Raise Malformed if a name is empty, too long or used twice."""
    if len(set(names)) != len(names) or not all(0 < len(name) <= 128 for name in names):
        raise Malformed(f"{what}: each needs a name of 1 to 128 characters, and a name only once")


def check_budget(budget: Budget | None, what: str) -> None:
    """Raise Malformed if an amount of the budget is out of range."""
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
