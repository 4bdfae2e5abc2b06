"""What travels on: facts and artifacts merged at each handoff, and withheld where a label says so.

Nothing is lost by accident. A proposal names what is new and what to drop; the rest is carried. A
label of a key stays with it through the request, whoever brings the key again, so that nobody can
make a secret public by repeating it without its label.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

import msgspec

from protocol.equality import equal
from protocol.events import Withheld
from protocol.handoff import Artifact, Fact

T = TypeVar("T", Fact, Artifact)


class Load(msgspec.Struct, frozen=True):
    """Facts by key and artifacts by name, each in order of its name."""

    facts: dict[str, Fact]
    artifacts: dict[str, Artifact]

    @property
    def fact_tuple(self) -> tuple[Fact, ...]:
        return tuple(self.facts.values())

    @property
    def artifact_tuple(self) -> tuple[Artifact, ...]:
        return tuple(self.artifacts.values())


def merge(
    carried: Load,
    facts: Iterable[Fact] = (),
    artifacts: Iterable[Artifact] = (),
    drop: Collection[str] = (),
    shown: Collection[str] = (),
    labels: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> Load:
    """Return what is carried after a proposal: less `drop` (of what it was `shown`), plus what is new.

    What is brought again as it is changes nothing: the log has no trace of it, so no verdict may rest on it.
    `labels` are those that keys had before, also of facts that are carried no longer.
    """
    kept = {key: fact for key, fact in carried.facts.items() if key not in drop or key not in shown}
    for fact in facts:
        before = carried.facts.get(fact.key)
        known = labels.get(fact.key, ())
        kept[fact.key] = _labelled(fact, known, before)
    named = dict(carried.artifacts)
    for item in artifacts:
        named[item.name] = _labelled(item, (), carried.artifacts.get(item.name))
    return Load(dict(sorted(kept.items())), dict(sorted(named.items())))


def _labelled(item: T, known: Collection[str], before: T | None) -> T:
    labels = {*item.labels, *known, *(before.labels if before is not None else ())}
    brought = msgspec.structs.replace(item, labels=tuple(sorted(labels)))
    return before if before is not None and equal(brought, before) else brought


def divide(load: Load, clearance: Collection[str]) -> tuple[Load, Load]:
    """Return what somebody with this clearance sees, and what is withheld from them."""
    cleared = frozenset(clearance)
    seen = Load(
        {key: fact for key, fact in load.facts.items() if cleared.issuperset(fact.labels)},
        {name: item for name, item in load.artifacts.items() if cleared.issuperset(item.labels)},
    )
    hidden = Load(
        {key: fact for key, fact in load.facts.items() if key not in seen.facts},
        {name: item for name, item in load.artifacts.items() if name not in seen.artifacts},
    )
    return seen, hidden


def summary_of(hidden: Load) -> Withheld | None:
    """Return what may be said of the withheld to whoever it is withheld from: labels and counts."""
    if not hidden.facts and not hidden.artifacts:
        return None
    labels = {label for fact in hidden.facts.values() for label in fact.labels}
    labels |= {label for item in hidden.artifacts.values() for label in item.labels}
    return Withheld(labels=tuple(sorted(labels)), facts=len(hidden.facts), artifacts=len(hidden.artifacts))
