"""A case: one move with everything that rules look at. Also refusals that several rules share."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from protocol.domain.carried import Carried
from protocol.domain.envelope import World
from protocol.domain.ledger import Ledger
from protocol.domain.plans import PlannedWork
from protocol.domain.turns import Segment, TurnState
from protocol.wire.commands import MAX_MESSAGE_BYTES, Report
from protocol.wire.config import Policy
from protocol.wire.handoff import Budget, Constraints, Handoff, Refusal, Rule
from protocol.wire.moves import Delegate, Move


class Case:
    """One move to be judged by the rules, with what it would lead to if none refused it."""

    __slots__ = (
        "before", "carried", "handoff", "known", "ledger",
        "move", "oversized", "plan", "policy", "report", "rest", "target", "turn", "world",
    )  # fmt: skip

    ledger: Ledger
    turn: TurnState
    move: Move
    oversized: int
    """Bytes of a proposal that was too large to send, else 0. `move` is then a summary."""
    report: Report
    policy: Policy
    world: World
    target: str | None
    """The agent that would get the work, or be asked."""
    before: Carried
    """What the turn carries before the move."""
    carried: Carried
    """What would be carried after it."""
    handoff: Handoff | None
    """The handoff that would be admitted, with nothing withheld."""
    known: Handoff | None
    """The same as its giver knows it: what the giver was shown, and what it adds."""
    rest: Budget
    """What the proposer has left once the round's spending is settled."""
    plan: tuple[PlannedWork, ...]
    """`delegate` only: its tasks as they would be admitted."""

    @property
    def segment(self) -> Segment:
        return self.turn.segment

    @property
    def given(self) -> frozenset[str]:
        """Keys of the handed-over facts that the proposer knows of."""
        return frozenset() if self.known is None else frozenset(fact.key for fact in self.known.facts)

    @property
    def own(self) -> Constraints:
        """The constraints that the proposer works under."""
        return self.turn.frame.constraints


def unknown_agent(case: Case, detail: str, hint: str) -> Refusal:
    return Refusal(rule=Rule.KNOWN_AGENT, detail=detail, numbers={"target": case.target}, hint=hint)


def passed(deadline: int, now: int, numbers: Mapping[str, Any] = MappingProxyType({})) -> Refusal:
    """Return the refusal of a deadline in the past (both UTC µs): the work would end at once."""
    return Refusal(
        rule=Rule.CONSTRAINTS,
        detail=f"the deadline passed {(now - deadline) / 1e6:.1f} s ago",
        numbers={**numbers, "deadline": deadline, "now": now},
        hint="a later deadline, or none",
    )


def outlined(case: Case) -> Refusal:
    """Refuse a move that was too large to send."""
    less = "fewer tasks at once, with less in them" if type(case.move) is Delegate else "bring less"
    return Refusal(
        rule=Rule.SIZE,
        detail=f"the proposal has {case.oversized} bytes of at most {MAX_MESSAGE_BYTES}",
        numbers={"bytes": case.oversized, "max_message_bytes": MAX_MESSAGE_BYTES},
        hint=f"{less}; put large things in a store and pass them on as artifacts (a name and a uri)",
    )


def too_large(what: msgspec.Struct, policy: Policy) -> Refusal | None:
    """Refuse anything whose JSON is larger than the policy allows for a handoff."""
    bytes_ = len(msgspec.json.encode(what))
    if bytes_ <= policy.max_handoff_bytes:
        return None
    return Refusal(
        rule=Rule.SIZE,
        detail=f"{bytes_} bytes of at most {policy.max_handoff_bytes}",
        numbers={"bytes": bytes_, "max_handoff_bytes": policy.max_handoff_bytes},
        hint="put large things in a store and pass them on as artifacts (a name and a uri)",
    )
