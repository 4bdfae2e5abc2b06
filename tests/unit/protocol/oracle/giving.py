"""What a move hands over, as the oracle has it: the whole of it, and what its reader is shown."""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from protocol.wire.commands import MoveProposed
from protocol.wire.handoff import Artifact, Budget, Constraints, Fact, Handoff
from protocol.wire.moves import Ask, Complete, Escalate, Fail, HandBack, Transfer
from tests.unit.protocol.oracle.account import (
    DIMENSIONS,
    Account,
    rest,
    same,
    spent_after,
)

MOVES = {
    Transfer: "transfer",
    HandBack: "hand_back",
    Ask: "ask",
    Escalate: "escalate",
    Complete: "complete",
    Fail: "fail",
}


def ends_at(asked: Constraints, at: int) -> int | None:
    ends = [asked.deadline] if asked.deadline is not None else []
    if asked.max_resolution_time_s is not None:
        ends.append(at + int(asked.max_resolution_time_s * 1e6))
    return min(ends, default=None)


T = TypeVar("T", bound=Fact | Artifact)


def _labelled(new: T, *labels: Iterable[str]) -> T:
    return msgspec.structs.replace(
        new, labels=tuple(sorted({*new.labels, *(each for some in labels for each in some)}))
    )


def merged(
    account: Account, move: Transfer | HandBack | Escalate
) -> tuple[dict[str, Fact], dict[str, Artifact]]:
    """Return facts and artifacts after a move: all but the dropped, and the new ones.

    A key has every label that it ever had in the request, dropped or not.
    """
    drop, items = ((), ()) if isinstance(move, Escalate) else (move.drop, move.artifacts)
    facts = {key: fact for key, fact in account.facts.items() if key not in drop}
    for fact in move.facts:
        new = _labelled(fact, account.labels.get(fact.key, ()))
        old = account.facts.get(fact.key)
        facts[fact.key] = old if old is not None and same(old, new) else new
    things = dict(account.things)
    for item in items:
        there = things.get(item.name)
        things[item.name] = _labelled(item, () if there is None else there.labels)
    return facts, things


def as_known(account: Account, move: Transfer | HandBack | Escalate, whole: Handoff) -> Handoff:
    """Return a handoff as its giver knows it: what it was shown, and what it brings."""
    items = () if isinstance(move, Escalate) else move.artifacts
    keys = set(account.sees) | {fact.key for fact in move.facts}
    names = set(account.sees_things) | {item.name for item in items}
    return msgspec.structs.replace(
        whole,
        facts=tuple(fact for fact in whole.facts if fact.key in keys),
        artifacts=tuple(item for item in whole.artifacts if item.name in names),
    )


def shown_budget(budget: Budget) -> Budget | None:
    return budget if any(getattr(budget, name) is not None for name in DIMENSIONS) else None


def whole_handoff(account: Account, proposal: MoveProposed, at: int) -> Handoff | None:
    """Return the whole handoff of a move; None where a move hands nothing over."""
    move, now_spent = proposal.move, spent_after(account, proposal)
    if not isinstance(move, Transfer | HandBack | Escalate):
        return None
    back = account.back
    if isinstance(move, HandBack) and back is None:
        return None
    facts, things = merged(account, move)
    left = rest(account.holder, now_spent)
    own = account.holder
    to: str = "human"
    return_to: str | None = None
    sealed, intent = False, account.intent
    if isinstance(move, Transfer):
        asked = move.constraints
        to, return_to, sealed, intent = move.to_agent, move.return_to, move.no_return, move.intent
        ends = [end for end in (own.deadline, ends_at(asked, at)) if end is not None]
        if asked.budget is not None:
            wanted = {name: getattr(asked.budget, name) for name in DIMENSIONS}
            left = Budget(
                **{name: getattr(left, name) if want is None else want for name, want in wanted.items()}
            )
        constraints = Constraints(
            deadline=min(ends, default=None),
            allowed_actions=own.actions
            if asked.allowed_actions is None
            else tuple(sorted(asked.allowed_actions)),
            budget=shown_budget(left),
            must_carry=tuple(sorted({*own.bound, *asked.must_carry})),
        )
    else:
        if isinstance(move, HandBack) and back is not None:
            own = account.stack[back]
            to, return_to, sealed, intent = own.agent, own.return_to, own.sealed, own.intent
        constraints = Constraints(
            deadline=own.deadline,
            allowed_actions=own.actions,
            budget=shown_budget(rest(own, now_spent)),
            must_carry=tuple(sorted(own.bound)),
        )
    return Handoff(
        move=MOVES[type(move)],
        from_agent=account.agent,  # type: ignore[arg-type]
        to_agent=to,  # type: ignore[arg-type]
        parent=account.turn,  # type: ignore[arg-type]
        summary=move.summary,
        intent=intent,
        facts=tuple(facts[key] for key in sorted(facts)),
        artifacts=tuple(things[name] for name in sorted(things)),
        constraints=constraints,
        return_to=return_to,  # type: ignore[arg-type]
        no_return=sealed,
    )


def as_shown(handoff: Handoff, clearance: Iterable[str] | None) -> Handoff:
    """Return what a reader with this clearance (None: people) may see of a handoff."""
    cleared = None if clearance is None else set(clearance)
    facts, things = (
        tuple(item for item in items if cleared is None or set(item.labels) <= cleared)
        for items in (handoff.facts, handoff.artifacts)
    )
    return msgspec.structs.replace(handoff, facts=facts, artifacts=things)


def differing(one: Handoff, other: Handoff) -> str:
    """Return the names of the fields that differ: what stands in them may be a secret."""
    return ", ".join(
        name for name in one.__struct_fields__ if not same(getattr(one, name), getattr(other, name))
    )
