"""Labels: what the fleet file adds to those of every fact under a key, and the rule `labels`.

A key is taken while its fact is carried. Who may not see that fact may neither replace nor drop it: what the
log says was handed over would not be what the next reader sees. A value is a secret; that its name is taken
is none.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from protocol.domain.case import Case
from protocol.wire.commands import (
    Command,
    Complete,
    Delegate,
    Deliver,
    Escalate,
    FactsPost,
    HandBack,
    Move,
    MoveProposed,
    Resolve,
    Submit,
    Task,
    Transfer,
)
from protocol.wire.handoff import Artifact, Fact, Refusal, Rule

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
    match command.what:
        case Submit() | Resolve() as what if _lacks(what.facts, labels):
            return replace(command, what=replace(what, facts=_with_labels(what.facts, labels)))
        case MoveProposed(move=Transfer() | HandBack() | Escalate() | Deliver() as move) as what:
            if _lacks(move.facts, labels):
                brings = replace(move, facts=_with_labels(move.facts, labels))
                return replace(command, what=replace(what, move=brings))
        case MoveProposed(move=Complete() as move) as what if _lacks(move.remember, labels):
            leaves = replace(move, remember=_with_labels(move.remember, labels))
            return replace(command, what=replace(what, move=leaves))
        case FactsPost() as what if _lacks(what.facts, labels):
            return replace(command, what=replace(what, facts=_with_labels(what.facts, labels)))
        case MoveProposed(move=Delegate(tasks=tasks) as move) as what:
            plan = replace(move, tasks=tuple(_task_labelled(task, labels) for task in tasks))
            return replace(command, what=replace(what, move=plan))
        case _:
            pass
    return command


def folded(labels: Labels) -> Labels:
    """Return labels by casefolded key: `Iban` is labelled as `iban` is."""
    found: dict[str, tuple[str, ...]] = {}
    for key, each in labels.items():
        found[key.casefold()] = (*found.get(key.casefold(), ()), *each)
    return found


def _task_labelled(task: Task, labels: Labels) -> Task:
    return replace(task, facts=_with_labels(task.facts, labels)) if _lacks(task.facts, labels) else task


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
    if isinstance(case.move, Delegate):
        named = (
            _taken(case, task.facts, task.artifacts, (), {"task": task.name}) for task in case.move.tasks
        )
        return next((refusal for refusal in named if refusal is not None), None)
    facts, artifacts, keys = _names_of(case.move)
    return _taken(case, facts, artifacts, keys, {})


def _names_of(move: Move) -> tuple[tuple[Fact, ...], tuple[Artifact, ...], tuple[str, ...]]:
    """Return the facts and artifacts that a move brings, and the keys that it drops or has remembered."""
    match move:
        case Transfer() | HandBack():
            return move.facts, move.artifacts, move.drop
        case Escalate():
            return move.facts, (), ()
        case Deliver():
            return move.facts, move.artifacts, ()
        case Complete():
            return move.remember, (), move.remember_keys
    return (), (), ()


def _taken(
    case: Case,
    facts: tuple[Fact, ...],
    artifacts: tuple[Artifact, ...],
    keys: tuple[str, ...],
    of: dict[str, Any],
) -> Refusal | None:
    """Refuse names that are taken by what the mover may not see; `of` says of which task they are."""
    if not (facts or artifacts or keys):
        return None
    sender, held, hidden = case.world.grounds.sender, case.turn.work.handoff, case.turn.hidden
    cleared = frozenset(() if sender is None else sender.clearance)
    taken = hidden.facts.keys() | {
        fact.key for fact in held.facts if fact.labels and not cleared.issuperset(fact.labels)
    }
    named = hidden.artifacts.keys() | {
        item.name for item in held.artifacts if not cleared.issuperset(item.labels)
    }
    brought = sorted({fact.key for fact in facts} & taken)
    others = sorted(set(keys) & taken)
    things = sorted({item.name for item in artifacts} & named)
    if not (brought or others or things):
        return None
    who, task = case.turn.agent, f"task {of['task']!r}: " if of else ""
    all_keys = sorted({*brought, *others})
    said = [f"the key {_quoted(all_keys)} is taken by a fact that {who} may not see"] if all_keys else []
    said += [f"the name {_quoted(things)} is taken by an artifact that {who} may not see"] if things else []
    hints = ["use another key" if all_keys else "use another name"] if brought or things else []
    hints += [f"leave {_quoted(others)} as it is"] if others else []
    return Refusal(
        rule=Rule.LABELS,
        detail=task + "; ".join(said),
        numbers={**of, "keys": all_keys} | ({"artifacts": things} if things else {}),
        hint="; ".join(hints),
    )


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
