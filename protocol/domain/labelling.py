"""Labels by key: the fleet file labels a fact by its key, besides the labels that its bringer says.

A guard labels a message before it decides it. So the event holds the labels, and what is recovered from the
event is the message as it was labelled: a log is judged again without the fleet file.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from protocol.wire.commands import Escalate, HandBack, Hearing, MoveProposed, Resolve, Submit, Transfer
from protocol.wire.handoff import Fact

Labels = Mapping[str, tuple[str, ...]]
"""By fact key. A submit's `text` is no such fact: free text is nobody's to label."""


def labelled(hearing: Hearing, labels: Labels) -> Hearing:
    """Return a message with the labels that its facts have to have."""
    match hearing.what:
        case Submit() | Resolve() as what if _lacks(what.facts, labels):
            return replace(hearing, what=replace(what, facts=_with(what.facts, labels)))
        case MoveProposed(move=Transfer() | HandBack() | Escalate() as move) if _lacks(move.facts, labels):
            asked = replace(move, facts=_with(move.facts, labels))
            return replace(hearing, what=replace(hearing.what, move=asked))
    return hearing


def _lacks(facts: tuple[Fact, ...], labels: Labels) -> bool:
    return bool(labels) and any(not set(labels.get(fact.key, ())) <= set(fact.labels) for fact in facts)


def _with(facts: tuple[Fact, ...], labels: Labels) -> tuple[Fact, ...]:
    return tuple(
        replace(fact, labels=tuple(sorted({*fact.labels, *labels.get(fact.key, ())}))) for fact in facts
    )
