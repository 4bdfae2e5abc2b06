"""What a move hands over, as the oracle has it: the whole of it, and what its reader is shown."""

import msgspec

from protocol.handoff import Artifact, Budget, Constraints, Fact, Handoff
from protocol.messages import Ask, Complete, Escalate, Fail, HandBack, MoveProposed, Transfer
from tests.unit.protocol.oracle.account import DIMENSIONS, Account, canonical, rest, same, spent_after

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


def merged(
    account: Account, move: Transfer | HandBack | Escalate
) -> tuple[dict[str, Fact], dict[str, Artifact]]:
    """Return facts and artifacts after a move: all but the dropped, and the new ones with old labels."""
    dropped = set() if isinstance(move, Escalate) else set(move.drop) & account.shown
    facts = {key: fact for key, fact in account.facts.items() if key not in dropped}
    for fact in move.facts:
        labels = account.labels.get(fact.key, frozenset()) | set(fact.labels)
        new = Fact(key=fact.key, value=fact.value, labels=tuple(sorted(labels)))
        old = account.facts.get(fact.key)
        facts[fact.key] = old if old is not None and canonical(old) == canonical(new) else new
    things = dict(account.things)
    for item in () if isinstance(move, Escalate) else move.artifacts:
        former = things[item.name].labels if item.name in things else ()
        things[item.name] = msgspec.structs.replace(item, labels=tuple(sorted({*item.labels, *former})))
    return facts, things


def shown_budget(budget: Budget) -> Budget | None:
    return budget if any(getattr(budget, name) is not None for name in DIMENSIONS) else None


def whole_handoff(account: Account, proposal: MoveProposed, at: int) -> Handoff | None:
    """Return the whole handoff of a move, nothing withheld; None where a move hands nothing over."""
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
            must_carry=tuple(sorted(own.must_carry | set(asked.must_carry))),
        )
    else:
        if isinstance(move, HandBack) and back is not None:
            own = account.stack[back]
            to, return_to, sealed, intent = own.agent, own.return_to, own.sealed, own.intent
        constraints = Constraints(
            deadline=own.deadline,
            allowed_actions=own.actions,
            budget=shown_budget(rest(own, now_spent)),
            must_carry=tuple(sorted(own.must_carry)),
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


def as_shown(handoff: Handoff, clearance: tuple[str, ...]) -> Handoff:
    """Return what a reader with this clearance may see of a handoff."""
    cleared = set(clearance)
    hidden = {fact.key for fact in handoff.facts if not set(fact.labels) <= cleared}
    keys = tuple(key for key in handoff.constraints.must_carry if key not in hidden)
    return msgspec.structs.replace(
        handoff,
        facts=tuple(fact for fact in handoff.facts if fact.key not in hidden),
        artifacts=tuple(item for item in handoff.artifacts if set(item.labels) <= cleared),
        constraints=msgspec.structs.replace(handoff.constraints, must_carry=keys),
    )


def differing(one: Handoff, other: Handoff) -> str:
    """Return the names of the fields that differ: what stands in them may be a secret."""
    return ", ".join(
        name for name in one.__struct_fields__ if not same(getattr(one, name), getattr(other, name))
    )
