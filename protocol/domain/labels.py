"""Labels: what the fleet file adds to those of every fact under a key, and the rule `labels`.

A key is taken while its fact is carried. Who may not see that fact may neither replace nor drop it: what the
log says was handed over would not be what the next reader sees. A value is a secret; that its name is taken
is none.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from protocol.domain.case import Case
from protocol.wire.commands import Command, FactsPost, MoveProposed, Resolve, Submit
from protocol.wire.handoff import Fact, Refusal, Rule
from protocol.wire.moves import Load

Labels = Mapping[str, tuple[str, ...]]
"""By fact key. A submit's `text` is no such fact: free text is nobody's to label."""


def labelled(command: Command, labels: Labels) -> Command:
    """Return a message with the labels that the fleet file gives its facts' keys, besides those it says.

    A guard labels a message before it decides it. So the event holds the labels, and the message recovered
    from it is labelled. A log is judged again without the fleet file.
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
    """Return labels by casefolded key: `Iban` is labelled as `iban` is."""
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
    """Refuse to bring, drop or remember what is carried and the mover may not see.

    It may see what its turn was shown and its clearance still covers, by the fleet of today. A clearance that
    came meanwhile counts from its next turn on: nobody replaces what they have not seen.
    """
    found = (_taken(case, load) for load in case.move.loads())
    return next((refusal for refusal in found if refusal is not None), None)


def _taken(case: Case, load: Load) -> Refusal | None:
    """Refuse names that are taken by what the mover may not see."""
    if not (load.facts or load.artifacts or load.keys):
        return None
    sender, held, hidden = case.world.grounds.sender, case.turn.work.handoff, case.turn.hidden
    cleared = frozenset(() if sender is None else sender.clearance)
    taken = hidden.facts.keys() | {
        fact.key for fact in held.facts if fact.labels and not cleared.issuperset(fact.labels)
    }
    named = hidden.artifacts.keys() | {
        item.name for item in held.artifacts if not cleared.issuperset(item.labels)
    }
    added = sorted({fact.key for fact in load.facts} & taken)
    others = sorted(set(load.keys) & taken)
    things = sorted({item.name for item in load.artifacts} & named)
    if not (added or others or things):
        return None
    who, all_keys = case.turn.agent, sorted({*added, *others})
    found = [f"the key {_quoted(all_keys)} is taken by a fact that {who} may not see"] if all_keys else []
    found += [f"the name {_quoted(things)} is taken by an artifact that {who} may not see"] if things else []
    hints = ["use another key" if all_keys else "use another name"] if added or things else []
    hints += [f"leave {_quoted(others)} as it is"] if others else []
    numbers: dict[str, Any] = {} if load.task is None else {"task": load.task}
    numbers |= {"keys": all_keys} | ({"artifacts": things} if things else {})
    where = "" if load.task is None else f"task {load.task!r}: "
    return Refusal(rule=Rule.LABELS, detail=where + "; ".join(found), numbers=numbers, hint="; ".join(hints))


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
