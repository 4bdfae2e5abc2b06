"""What a move hands over, as the oracle has it: the whole of it, and what its reader is shown."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from protocol.wire.commands import Ask, Complete, Escalate, Fail, HandBack, MoveProposed, Transfer
from protocol.wire.handoff import Artifact, Budget, Constraints, Fact, Handoff
from tests.unit.protocol.oracle.account import (
    DIMENSIONS,
    Account,
    Bound,
    canonical,
    changed_at,
    rest,
    same,
    shifted,
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
Layered = dict[str, tuple[T, ...]]


def _added(layers: tuple[T, ...], new: T, seen: T | None, own: T | None) -> tuple[T, ...]:
    """Put a new value where its bringer sees one, or else has put one; or else at the end."""
    written = [canonical(layer) for layer in layers]
    places = [at for at, each in enumerate(written) if seen is not None and each == canonical(seen)][:1]
    if not places and own is not None:
        places = [at for at, each in enumerate(written) if each == canonical(own)][-1:]
    if not places:
        return (*layers, msgspec.structs.replace(new, labels=tuple(sorted(set(new.labels)))))
    labels = tuple(sorted({*new.labels, *layers[places[0]].labels}))
    changed = msgspec.structs.replace(new, labels=labels)
    if canonical(changed) == written[places[0]]:
        return layers
    return tuple(changed if at == places[0] else each for at, each in enumerate(layers))


def merged(
    account: Account, move: Transfer | HandBack | Escalate, clearance: set[str]
) -> tuple[Layered[Fact], Layered[Artifact]]:
    """Return facts and artifacts after a move, in layers: all but the dropped, and the new ones."""
    facts = dict(account.facts)
    new_keys = {fact.key for fact in move.facts}
    for key in () if isinstance(move, Escalate) else set(move.drop) & account.shown - new_keys:
        seen = canonical(account.sees[key])
        left = list(facts.get(key, ()))
        for at, layer in enumerate(left):
            if canonical(layer) == seen:
                del left[at]
                break
        facts[key] = tuple(left)
        if not left:
            del facts[key]
    for fact in move.facts:
        former = account.labels.get(fact.key, frozenset())
        if fact.key not in facts and former <= clearance:
            fact = msgspec.structs.replace(fact, labels=tuple(sorted(former | set(fact.labels))))
        said = account.own.get((account.agent, fact.key), ())
        own = said[-1] if said else None
        places = [at for at, layer in enumerate(facts.get(fact.key, ())) if own and same(layer, own)]
        if places and (fact.key, places[-1]) in account.bound:
            own = None
        facts[fact.key] = _added(facts.get(fact.key, ()), fact, account.sees.get(fact.key), own)
    things = dict(account.things)
    for item in () if isinstance(move, Escalate) else move.artifacts:
        seen_thing = account.sees_things.get(item.name)
        things[item.name] = _added(things.get(item.name, ()), item, seen_thing, None)
    return facts, things


def as_known(account: Account, move: Transfer | HandBack | Escalate, whole: Handoff) -> Handoff:
    """Return a handoff as its giver knows it: what it saw, less what it drops, and what it brings."""
    gone = () if isinstance(move, Escalate) else move.drop
    facts = {key: fact for key, fact in account.sees.items() if key not in gone}
    facts |= {fact.key: fact for fact in move.facts}
    things = dict(account.sees_things)
    things |= {} if isinstance(move, Escalate) else {item.name: item for item in move.artifacts}
    keys = move.constraints.must_carry if isinstance(move, Transfer) else ()
    return msgspec.structs.replace(
        whole,
        facts=tuple(facts.values()),
        artifacts=tuple(things.values()),
        constraints=msgspec.structs.replace(whole.constraints, must_carry=keys),
    )


def shown_budget(budget: Budget) -> Budget | None:
    return budget if any(getattr(budget, name) is not None for name in DIMENSIONS) else None


def whole_handoff(account: Account, proposal: MoveProposed, at: int, clearance: set[str]) -> Handoff | None:
    """Return the whole handoff of a move with every layer; None where a move hands nothing over."""
    move, now_spent = proposal.move, spent_after(account, proposal)
    if not isinstance(move, Transfer | HandBack | Escalate):
        return None
    back = account.back
    if isinstance(move, HandBack) and back is None:
        return None
    facts, things = merged(account, move, clearance)
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
        )
    else:
        if isinstance(move, HandBack) and back is not None:
            own = account.stack[back]
            to, return_to, sealed, intent = own.agent, own.return_to, own.sealed, own.intent
        constraints = Constraints(
            deadline=own.deadline, allowed_actions=own.actions, budget=shown_budget(rest(own, now_spent))
        )
    return Handoff(
        move=MOVES[type(move)],
        from_agent=account.agent,  # type: ignore[arg-type]
        to_agent=to,  # type: ignore[arg-type]
        parent=account.turn,  # type: ignore[arg-type]
        summary=move.summary,
        intent=intent,
        facts=tuple(fact for key in sorted(facts) for fact in facts[key]),
        artifacts=tuple(item for name in sorted(things) for item in things[name]),
        constraints=constraints,
        return_to=return_to,  # type: ignore[arg-type]
        no_return=sealed,
    )


def bound_by(account: Account, move: Transfer | HandBack | Escalate, after: Layered[Fact]) -> Bound:
    """Return which layers must be carried on after a move: an asker means what they see, or bring."""
    back = account.back
    until = account.stack[back].bound if isinstance(move, HandBack) and back is not None else account.bound
    bound = set(shifted(until, account.facts, after))
    for key in move.constraints.must_carry if isinstance(move, Transfer) else ():
        before, layers = account.facts.get(key, ()), after.get(key, ())
        at = len(before) if len(layers) > len(before) else changed_at(before, layers)
        said = account.own.get((account.agent, key), ())
        meant = account.sees.get(key) or (said[-1] if said else None)
        places = [place for place, layer in enumerate(layers) if meant is not None and same(layer, meant)]
        if at is None and places:
            at = places[0] if key in account.sees else places[-1]
        if at is not None:
            bound.add((key, at))
    return frozenset(bound)


def _visible(layers: Iterable[T], names: Callable[[T], str], clearance: set[str] | None) -> dict[str, T]:
    """Return by name the first layer that may be seen."""
    found: dict[str, T] = {}
    for layer in layers:
        if clearance is None or set(layer.labels) <= clearance:
            found.setdefault(names(layer), layer)
    return found


def as_shown(handoff: Handoff, clearance: Iterable[str] | None, bound: Bound) -> Handoff:
    """Return what a reader with this clearance (None: people) may see of a handoff with every layer."""
    cleared = None if clearance is None else set(clearance)
    facts = _visible(handoff.facts, lambda fact: fact.key, cleared)
    things = _visible(handoff.artifacts, lambda item: item.name, cleared)
    layers: dict[str, list[Fact]] = {}
    for fact in handoff.facts:
        layers.setdefault(fact.key, []).append(fact)
    keys = tuple(sorted(key for key, at in bound if facts.get(key) is layers[key][at]))
    return msgspec.structs.replace(
        handoff,
        facts=tuple(facts.values()),
        artifacts=tuple(things.values()),
        constraints=msgspec.structs.replace(handoff.constraints, must_carry=keys),
    )


def differing(one: Handoff, other: Handoff) -> str:
    """Return the names of the fields that differ: what stands in them may be a secret."""
    return ", ".join(
        name for name in one.__struct_fields__ if not same(getattr(one, name), getattr(other, name))
    )
