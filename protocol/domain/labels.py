"""Labels by key: what the fleet file adds to the labels of every fact under a key."""

from collections.abc import Mapping

from msgspec.structs import replace

from protocol.wire.commands import (
    Command,
    Complete,
    Delegate,
    Deliver,
    Escalate,
    FactsPost,
    HandBack,
    MoveProposed,
    Resolve,
    Submit,
    Task,
    Transfer,
)
from protocol.wire.handoff import Fact

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
