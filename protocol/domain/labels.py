"""Labels that the fleet file adds to facts by key, and the rule `labels`.

A key is taken while its fact is carried. An agent that may not see the fact may neither replace nor drop it;
otherwise the next reader would see something else than the log says was handed over. Values are secret; the
fact that a key is taken is not.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from protocol.domain.case import Case
from protocol.wire.commands import Command, FactsPost, MoveProposed, Resolve, Submit
from protocol.wire.handoff import Fact, Refusal, Rule
from protocol.wire.moves import Payload

Labels = Mapping[str, tuple[str, ...]]
"""Labels by fact key. A submit's `text` gets none, because free text cannot be labelled."""


def labelled(command: Command, labels: Labels) -> Command:
    """Return a message whose facts have their own labels plus those that the fleet file gives their keys.

    A guard labels a message before deciding it. So the event and the message recovered from it have the
    labels, and a log can be judged again without the fleet file.
    """
    if not labels:
        return command
    labels = folded(labels)
    what = command.what

    def with_labels(facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
        return _with_labels(facts, labels) if _lacks(facts, labels) else facts

    if isinstance(what, MoveProposed):
        return replace(command, what=replace(what, move=what.move.with_facts(with_labels)))
    if isinstance(what, Submit | Resolve | FactsPost):
        return replace(command, what=replace(what, facts=with_labels(what.facts)))
    return command


def folded(labels: Labels) -> Labels:
    """Return the labels by casefolded key, so that `Iban` and `iban` have the same ones."""
    found: dict[str, tuple[str, ...]] = {}
    for key, each in labels.items():
        found[key.casefold()] = (*found.get(key.casefold(), ()), *each)
    return found


def _lacks(facts: tuple[Fact, ...], labels: Labels) -> bool:
    return any(not set(labels.get(fact.key.casefold(), ())) <= set(fact.labels) for fact in facts)


def _with_labels(facts: tuple[Fact, ...], labels: Labels) -> tuple[Fact, ...]:
    return tuple(
        replace(fact, labels=tuple(sorted({*fact.labels, *labels.get(fact.key.casefold(), ())})))
        for fact in facts
    )


# --- the rule -------------------------------------------------------------------------------------------


def unseen(case: Case) -> Refusal | None:
    """Refuse to add, drop or remember anything under a carried name that the mover may not see.

    The mover may see what its turn was shown, as far as its clearance in the current fleet still covers it. A
    clearance gained later counts from its next turn on: an agent cannot replace what it has not seen.
    """
    found = (_taken(case, payload) for payload in case.move.payloads())
    return next((refusal for refusal in found if refusal is not None), None)


def _taken(case: Case, payload: Payload) -> Refusal | None:
    """Refuse names that are taken by something that the mover may not see."""
    if not (payload.facts or payload.artifacts or payload.keys):
        return None
    sender, held, hidden = case.world.grounds.sender, case.turn.work.handoff, case.turn.hidden
    cleared = frozenset(() if sender is None else sender.clearance)
    taken = hidden.facts.keys() | {
        fact.key for fact in held.facts if fact.labels and not cleared.issuperset(fact.labels)
    }
    named = hidden.artifacts.keys() | {
        item.name for item in held.artifacts if not cleared.issuperset(item.labels)
    }
    added = sorted({fact.key for fact in payload.facts} & taken)
    others = sorted(set(payload.keys) & taken)
    things = sorted({item.name for item in payload.artifacts} & named)
    if not (added or others or things):
        return None
    who, all_keys = case.turn.agent, sorted({*added, *others})
    found = [f"the key {_quoted(all_keys)} is taken by a fact that {who} may not see"] if all_keys else []
    found += [f"the name {_quoted(things)} is taken by an artifact that {who} may not see"] if things else []
    hints = ["use another key" if all_keys else "use another name"] if added or things else []
    hints += [f"leave {_quoted(others)} as it is"] if others else []
    numbers: dict[str, Any] = {} if payload.task is None else {"task": payload.task}
    numbers |= {"keys": all_keys} | ({"artifacts": things} if things else {})
    where = "" if payload.task is None else f"task {payload.task!r}: "
    return Refusal(rule=Rule.LABELS, detail=where + "; ".join(found), numbers=numbers, hint="; ".join(hints))


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
