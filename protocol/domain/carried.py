"""What is carried: facts and artifacts, which are merged at each handoff and withheld by label.

A handoff carries one fact per key and one artifact per name. A proposal names what is new and what to drop;
the rest is carried on. So what the log shows as handed over is what every later cleared reader sees.

A key keeps its labels throughout the request, even if its fact is dropped, so a secret cannot be made public
by repeating it without its label. And what an agent may not see it cannot change: the rule `labels` refuses
that.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from protocol.wire.codec import canonical, equal
from protocol.wire.event_parts import Withheld
from protocol.wire.handoff import Artifact, Fact

T = TypeVar("T", bound=Fact | Artifact)
Labels = Mapping[str, Collection[str]]
"""Labels by fact key."""
_NO_LABELS = frozenset[str]()


class Carried(msgspec.Struct, frozen=True, gc=False):
    """Facts by key and artifacts by name, both sorted."""

    facts: dict[str, Fact]
    artifacts: dict[str, Artifact]

    @classmethod
    def collect(cls, facts: Iterable[Fact], artifacts: Iterable[Artifact]) -> "Carried":
        """Collect facts and artifacts, whose names must be unique and sorted."""
        return cls({fact.key: fact for fact in facts}, {item.name: item for item in artifacts})

    @property
    def fact_tuple(self) -> tuple[Fact, ...]:
        return tuple(self.facts.values())

    @property
    def artifact_tuple(self) -> tuple[Artifact, ...]:
        return tuple(self.artifacts.values())


NOTHING = Carried({}, {})


def merge(
    carried: Carried,
    facts: Iterable[Fact] = (),
    artifacts: Iterable[Artifact] = (),
    drop: Collection[str] = (),
    labels: Labels = MappingProxyType({}),
) -> Carried:
    """Return what is carried after a proposal: without `drop`, with the additions. An added key is kept.

    Adding an identical fact is a no-op: the carried fact stays unchanged.

    Args:
        labels: earlier labels of keys. They also apply to keys that are no longer carried.
    """
    new_facts, new_artifacts = tuple(facts), tuple(artifacts)
    if not (new_facts or new_artifacts or drop):
        return carried
    kept, named = carried.facts, carried.artifacts
    if new_facts or drop:
        kept = kept.copy()
        for key in drop:
            kept.pop(key, None)
        is_longer = not all(fact.key in kept for fact in new_facts)
        for fact in new_facts:
            kept[fact.key] = _changed(carried.facts.get(fact.key), fact, labels.get(fact.key, ()))
        if is_longer:  # otherwise the order has not changed
            kept = dict(sorted(kept.items()))
    if new_artifacts:
        named = named | {item.name: _changed(named.get(item.name), item, ()) for item in new_artifacts}
        named = dict(sorted(named.items()))
    return Carried(kept, named)


def together(one: Carried, other: Carried) -> Carried:
    """Return the union of two that have no name in common."""
    if not (other.facts or other.artifacts):
        return one
    facts, artifacts = one.facts | other.facts, one.artifacts | other.artifacts
    return Carried(dict(sorted(facts.items())), dict(sorted(artifacts.items())))


def _changed(old: T | None, new: T, labels: Collection[str]) -> T:
    """Return `new` with all labels of its name, or `old` if that is equal."""
    every = tuple(sorted({*new.labels, *labels, *(() if old is None else old.labels)}))
    if every != new.labels:
        new = replace(new, labels=every)
    return new if old is None or not equal(new, old) else old


def added(before: dict[str, T], after: dict[str, T]) -> tuple[str, ...]:
    """Return the names whose items are new or changed after a merge, in order."""
    return tuple(name for name, item in after.items() if item is not before.get(name))


def dropped(before: Carried, after: Carried) -> tuple[str, ...]:
    """Return the keys of facts that are no longer carried, in order."""
    return tuple(key for key in before.facts if key not in after.facts)


def narrowed(carried: Carried, keys: Collection[str]) -> Carried:
    """Return the part with these keys and names."""
    return Carried(
        {key: fact for key, fact in carried.facts.items() if key in keys},
        {name: item for name, item in carried.artifacts.items() if name in keys},
    )


def lost(before: Carried, after: Carried, must_carry: Iterable[str]) -> list[str]:
    """Return the keys in `must_carry` whose fact was dropped or got a different value."""
    return [key for key in must_carry if _is_lost(before.facts.get(key), after.facts.get(key))]


def _is_lost(old: Fact | None, new: Fact | None) -> bool:
    return old is not None and new is not old and (new is None or not equal(old.value, new.value))


# --- who sees what ----------------------------------------------------------------------------------


class Divided(NamedTuple):
    """What is carried, as one reader gets it."""

    shown: Carried
    hidden: Carried
    withheld: Withheld | None
    """What the reader may know about what is hidden: labels and counts."""


def is_cleared(items: Iterable[Fact | Artifact], clearance: Collection[str]) -> bool:
    """Return True if a reader with this clearance may see all of `items`."""
    labels = [label for item in items if item.labels for label in item.labels]
    return not labels or frozenset(clearance).issuperset(labels)


def divide(carried: Carried, clearance: Collection[str] | None) -> Divided:
    """Return what a reader with this clearance (None: for everything) sees, and what is withheld."""
    cleared = None if clearance is None else frozenset(clearance)
    facts, hidden_facts = _divided(carried.facts, cleared)
    artifacts, hidden_artifacts = _divided(carried.artifacts, cleared)
    if not (hidden_facts or hidden_artifacts):
        return Divided(carried, NOTHING, None)
    every: tuple[Fact | Artifact, ...] = (*hidden_facts.values(), *hidden_artifacts.values())
    labels = tuple(sorted({label for item in every for label in item.labels}))
    withheld = Withheld(labels=labels, facts=len(hidden_facts), artifacts=len(hidden_artifacts))
    return Divided(Carried(facts, artifacts), Carried(hidden_facts, hidden_artifacts), withheld)


def _divided(named: dict[str, T], cleared: frozenset[str] | None) -> tuple[dict[str, T], dict[str, T]]:
    hidden = (
        {}
        if cleared is None
        else {
            name: item for name, item in named.items() if item.labels and not cleared.issuperset(item.labels)
        }
    )
    return (
        named if not hidden else {name: item for name, item in named.items() if name not in hidden}
    ), hidden


# --- what was handed over before ----------------------------------------------------------------------


_HASHED_BEYOND = 64
"""Bytes of the longest value that a history keeps unhashed."""


@dataclass(slots=True)
class FactHistory:
    """Every fact that any admitted handoff held, withheld or not."""

    _lately: list[tuple[Fact, ...]] = field(default_factory=list)
    """Facts of each admitted handoff since the last `condense`."""
    _before: set[tuple[str, bytes]] = field(default_factory=set)
    """Keys and values (`_value_key`) in earlier handoffs."""
    _keys: set[str] = field(default_factory=set)
    """Keys in earlier handoffs."""
    _last: dict[str, Fact] = field(default_factory=dict)
    """By key: the facts of the newest earlier handoff."""
    labels: dict[str, frozenset[str]] = field(default_factory=dict)
    """By key: every label that a fact with this key ever had in this request."""

    def remember(self, facts: tuple[Fact, ...]) -> None:
        """Add the facts of one handoff."""
        self._lately.append(facts)
        for fact in facts:
            if fact.labels:
                known = self.labels.get(fact.key, _NO_LABELS)
                if not known.issuperset(fact.labels):
                    self.labels[fact.key] = known.union(fact.labels)

    def is_new(self, fact: Fact, clearance: Collection[str] | None = None) -> bool:
        """Return True if no handoff held this key with this value.

        A sender that is not cleared for the key's labels must not learn if it guessed a value. For such a
        sender, a fact is new only if no handoff held its key.

        Args:
            clearance: the sender's; None: for everything.
        """
        self.condense()
        if fact.key not in self._keys:
            return True
        if clearance is not None and not self.labels.get(fact.key, _NO_LABELS).issubset(clearance):
            return False
        return (fact.key, _value_key(fact.value)) not in self._before

    def __len__(self) -> int:
        """Return how many values it has condensed."""
        return len(self._before)

    def condense(self) -> None:
        """Process the collected handoffs and release them, so that each is processed only once."""
        for facts in self._lately:
            last, self._last = self._last, {fact.key: fact for fact in facts}
            for fact in facts:
                if last.get(fact.key) is not fact:  # otherwise it was carried on unchanged, like most facts
                    self._keys.add(fact.key)
                    self._before.add((fact.key, _value_key(fact.value)))
        self._lately.clear()


def _value_key(value: object) -> bytes:
    """Return the key of a value in a history: its canonical form, or the hash of a long one."""
    form = canonical(value)
    return form if len(form) <= _HASHED_BEYOND else b"#" + sha256(form).digest()
