"""What is carried: facts and artifacts as they travel on, merged at each handoff, withheld by their labels.

A handoff carries one fact a key and one artifact a name. A proposal names what is new and what to drop; the
rest is carried. So what the log says was handed over is what every later reader sees who is cleared for it.

The labels of a key stay with it through the request, dropped or not: nobody can make a secret public by
repeating it without its label. Nobody changes what they may not see, either: the rule `labels` refuses that.
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
"""By key of a fact."""
_NO_LABELS = frozenset[str]()


class Carried(msgspec.Struct, frozen=True, gc=False):
    """Facts by key and artifacts by name, each in order of its name."""

    facts: dict[str, Fact]
    artifacts: dict[str, Artifact]

    @classmethod
    def of(cls, facts: Iterable[Fact], artifacts: Iterable[Artifact]) -> "Carried":
        """Return what these facts and artifacts are together; of each name there is one."""
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
    """Return what is carried after a proposal: less `drop`, plus what is new. A key that is brought stays.

    Bringing an identical fact is a no-op: the fact that is carried stays, to the letter.

    Args:
        labels: those that keys had before. They hold for a key that is carried no longer, too.
    """
    brought, things = tuple(facts), tuple(artifacts)
    if not (brought or things or drop):
        return carried
    kept, named = carried.facts, carried.artifacts
    if brought or drop:
        kept = kept.copy()
        for key in drop:
            kept.pop(key, None)
        is_longer = not all(fact.key in kept for fact in brought)
        for fact in brought:
            kept[fact.key] = _changed(carried.facts.get(fact.key), fact, labels.get(fact.key, ()))
        if is_longer:  # else the order is as it was
            kept = dict(sorted(kept.items()))
    if things:
        named = named | {item.name: _changed(named.get(item.name), item, ()) for item in things}
        named = dict(sorted(named.items()))
    return Carried(kept, named)


def together(one: Carried, other: Carried) -> Carried:
    """Return what two carry that have no name in common."""
    if not (other.facts or other.artifacts):
        return one
    facts, artifacts = one.facts | other.facts, one.artifacts | other.artifacts
    return Carried(dict(sorted(facts.items())), dict(sorted(artifacts.items())))


def _changed(old: T | None, new: T, labels: Collection[str]) -> T:
    """Return `new` with the labels that its name has, or `old` where that says the same."""
    every = tuple(sorted({*new.labels, *labels, *(() if old is None else old.labels)}))
    if every != new.labels:
        new = replace(new, labels=every)
    return new if old is None or not equal(new, old) else old


def added(before: dict[str, T], after: dict[str, T]) -> tuple[str, ...]:
    """Return the names under which something is new or changed once a move was merged, in order."""
    return tuple(name for name, item in after.items() if item is not before.get(name))


def dropped(before: Carried, after: Carried) -> tuple[str, ...]:
    """Return the keys of the facts that are carried no longer, in order."""
    return tuple(key for key in before.facts if key not in after.facts)


def narrowed(carried: Carried, keys: Collection[str]) -> Carried:
    """Return what is carried under these keys and names."""
    return Carried(
        {key: fact for key, fact in carried.facts.items() if key in keys},
        {name: item for name, item in carried.artifacts.items() if name in keys},
    )


def lost(before: Carried, after: Carried, must_carry: Iterable[str]) -> list[str]:
    """Return the keys of those that must be carried whose fact was dropped or got another value."""
    return [key for key in must_carry if _is_lost(before.facts.get(key), after.facts.get(key))]


def _is_lost(old: Fact | None, new: Fact | None) -> bool:
    return old is not None and new is not old and (new is None or not equal(old.value, new.value))


# --- who sees what ----------------------------------------------------------------------------------


class Divided(NamedTuple):
    """What is carried, as one reader gets it."""

    shown: Carried
    hidden: Carried
    withheld: Withheld | None
    """What they may be told of what is hidden: labels and counts."""


def is_cleared(items: Iterable[Fact | Artifact], clearance: Collection[str]) -> bool:
    """Return True if somebody with this clearance may see all of `items`."""
    labels = [label for item in items if item.labels for label in item.labels]
    return not labels or frozenset(clearance).issuperset(labels)


def divide(carried: Carried, clearance: Collection[str] | None) -> Divided:
    """Return what somebody with this clearance (None: for everything) sees, and what is withheld."""
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
"""Bytes of the longest value that a history keeps as it is."""


@dataclass(slots=True)
class FactHistory:
    """Every fact that an admitted handoff held, withheld or not."""

    _lately: list[tuple[Fact, ...]] = field(default_factory=list)
    """Facts as each admitted handoff held them, since `is_new` was last asked."""
    _before: set[tuple[str, bytes]] = field(default_factory=set)
    """Keys and values (`_known_by`) of those before them."""
    _keys: set[str] = field(default_factory=set)
    """Keys of the same."""
    _last: dict[str, Fact] = field(default_factory=dict)
    """By key: the newest handoff of those before."""
    labels: dict[str, frozenset[str]] = field(default_factory=dict)
    """By key: every label that a fact of this key ever had in this request."""

    def remember(self, facts: tuple[Fact, ...]) -> None:
        """Take in what one handoff holds."""
        self._lately.append(facts)
        for fact in facts:
            if fact.labels:
                known = self.labels.get(fact.key, _NO_LABELS)
                if not known.issuperset(fact.labels):
                    self.labels[fact.key] = known.union(fact.labels)

    def is_new(self, fact: Fact, clearance: Collection[str] | None = None) -> bool:
        """Return True if no handoff held this key with this value.

        Who is not cleared for the key's labels must not learn whether they have guessed its value: to
        them a fact is new if no handoff held its key.

        Args:
            clearance: of whoever brings the fact; None: for everything.
        """
        self.condense()
        if fact.key not in self._keys:
            return True
        if clearance is not None and not self.labels.get(fact.key, _NO_LABELS).issubset(clearance):
            return False
        return (fact.key, _known_by(fact.value)) not in self._before

    def __len__(self) -> int:
        """Return how many values it knows by themselves, and not by the handoff that held them."""
        return len(self._before)

    def condense(self) -> None:
        """Look at each handoff once, and let it go: a request that asks at every hop looks at none again."""
        for facts in self._lately:
            last, self._last = self._last, {fact.key: fact for fact in facts}
            for fact in facts:
                if last.get(fact.key) is not fact:  # else it was carried on as it is, as most facts are
                    self._keys.add(fact.key)
                    self._before.add((fact.key, _known_by(fact.value)))
        self._lately.clear()


def _known_by(value: object) -> bytes:
    """Return what stands for a value among those that were held: its canonical form, or a long one's hash."""
    form = canonical(value)
    return form if len(form) <= _HASHED_BEYOND else b"#" + sha256(form).digest()
