"""Layers: facts and artifacts as they travel on, merged at each handoff, withheld where a label says so.

Nothing is lost by accident. A proposal names what is new and what to drop; the rest is carried. A
label of a key stays with it through the request, so that nobody can make a secret public by repeating it
without its label.

A key may have several *layers*. An agent may bring a fact under a key of which it is withheld one. It cannot
know of that: its fact becomes another layer beneath, and the first stays. A reader sees the
first layer that it is cleared for. So what an agent sees is what it would see if nothing were withheld.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from protocol.wire.codec import canonical, equal
from protocol.wire.event_parts import Beneath, Withheld
from protocol.wire.events import FactsWithheld
from protocol.wire.handoff import Artifact, Fact, Handoff

T = TypeVar("T", bound=Fact | Artifact)
_NO_LABELS = frozenset[str]()


class Load(msgspec.Struct, frozen=True, gc=False):
    """Layers of facts by key and of artifacts by name, each in order of its name.

    The first layer is what somebody sees who is cleared for everything.
    """

    facts: dict[str, tuple[Fact, ...]]
    artifacts: dict[str, tuple[Artifact, ...]]

    @property
    def fact_tuple(self) -> tuple[Fact, ...]:
        return tuple(layers[0] for layers in self.facts.values())

    @property
    def artifact_tuple(self) -> tuple[Artifact, ...]:
        return tuple(layers[0] for layers in self.artifacts.values())


NO_LOAD = Load({}, {})
Marks = frozenset[tuple[str, int]]
"""Layers of facts that must be carried unchanged: by key, and by their place among the key's layers."""


class Bringer(NamedTuple):
    """What merging has to know of the agent, client or person that adds to a load."""

    facts: Mapping[str, Fact] = MappingProxyType({})
    """What it was shown."""
    artifacts: Mapping[str, Artifact] = MappingProxyType({})
    clearance: frozenset[str] | None = None
    """None: for everything, as people and clients are."""
    own: Mapping[str, Fact] = MappingProxyType({})
    """By key, what it brought last without being cleared to see it again, and may replace."""
    marks: Marks = frozenset()

    def may_see(self, labels: Collection[str]) -> bool:
        return self.clearance is None or self.clearance.issuperset(labels)


def merge(
    carried: Load,
    facts: Iterable[Fact] = (),
    artifacts: Iterable[Artifact] = (),
    drop: Collection[str] = (),
    bringer: Bringer = Bringer(),  # noqa: B008  # it is immutable
    labels: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> Load:
    """Return what is carried after a proposal: less `drop` (of what its bringer saw), plus what is new.

    What is brought again as it is changes nothing: the log has no trace of it, so no verdict may rest on it.

    Args:
        labels: those that keys had before. They hold for a key that is carried no longer, if its bringer
            could have seen it; anybody else cannot know the secret, nor that there was one.
    """
    brought, things = tuple(facts), tuple(artifacts)
    if not (brought or things or drop):
        return carried
    kept = dict(carried.facts)
    for key in set(drop) & bringer.facts.keys() - {fact.key for fact in brought}:
        kept[key] = _without(kept.get(key, ()), bringer.facts[key])
    for fact in brought:
        layers, known = kept.get(fact.key, ()), labels.get(fact.key, ())
        if not layers and bringer.may_see(known):
            fact = _labelled(fact, known)
        kept[fact.key] = _with(layers, fact, bringer.facts.get(fact.key), _own(layers, fact.key, bringer))
    named = dict(carried.artifacts)
    for item in things:
        named[item.name] = _with(named.get(item.name, ()), item, bringer.artifacts.get(item.name), None)
    return Load({key: kept[key] for key in sorted(kept) if kept[key]}, dict(sorted(named.items())))


def _own(layers: tuple[Fact, ...], key: str, bringer: Bringer) -> Fact | None:
    """Return what the bringer put under a key unseen, where it may put something else in its place."""
    own = bringer.own.get(key)
    at = last_place_of(layers, own)
    return None if at is None or (key, at) in bringer.marks else own


def _with(layers: tuple[T, ...], new: T, shown: T | None, own: T | None) -> tuple[T, ...]:
    """Return the layers of a key after somebody brought `new` under it.

    It takes the place of the layer that they see, else of their own; else it stands beneath all others.
    """
    at = place_of(layers, shown)
    if at is None:
        at = last_place_of(layers, own)
    if at is None:
        return (*layers, _labelled(new, ()))
    new = _labelled(new, layers[at].labels)
    return layers if equal(new, layers[at]) else (*layers[:at], new, *layers[at + 1 :])


def _without(layers: tuple[T, ...], shown: T | None) -> tuple[T, ...]:
    at = place_of(layers, shown)
    return layers if at is None else layers[:at] + layers[at + 1 :]


def place_of(layers: tuple[T, ...], known: T | None) -> int | None:
    """Return the first place of a layer among those of a key; None if it is none of them."""
    if known is None:
        return None
    return next((at for at, layer in enumerate(layers) if equal(layer, known)), None)


def last_place_of(layers: tuple[T, ...], known: T | None) -> int | None:
    """Return the last place of a layer among those of a key; None if it is none of them."""
    at = place_of(layers[::-1], known)
    return None if at is None else len(layers) - 1 - at


def _labelled(item: T, known: Collection[str]) -> T:
    labels = tuple(sorted({*item.labels, *known}))
    return item if labels == item.labels else replace(item, labels=labels)


def difference(before: tuple[T, ...], after: tuple[T, ...]) -> T | None:
    """Return what was brought under a key, from its layers before and after; None if nothing was.

    One proposal changes one layer of a key at most: it replaces or drops one, or adds the last.
    """
    if len(after) < len(before):
        return None
    if len(after) > len(before):
        return after[-1]
    at = _changed_at(before, after)
    return None if at is None else after[at]


def difference_at(before: tuple[T, ...], after: tuple[T, ...]) -> int | None:
    """Return the place of what was brought under a key; None if nothing was."""
    return len(before) if len(after) > len(before) else _changed_at(before, after)


def _changed_at(before: tuple[T, ...], after: tuple[T, ...]) -> int | None:
    """Return which layer of a key was replaced or dropped; None if none was."""
    if len(after) > len(before):
        return None
    pairs = zip(before, after, strict=False)
    at = next((at for at, (old, new) in enumerate(pairs) if not equal(old, new)), len(after))
    return at if at < len(before) else None


def brought(before: Mapping[str, tuple[T, ...]], after: Mapping[str, tuple[T, ...]]) -> tuple[T, ...]:
    """Return all that was brought between two loads."""
    found = (difference(before.get(key, ()), layers) for key, layers in after.items())
    return tuple(item for item in found if item is not None)


def dropped(before: Mapping[str, tuple[T, ...]], after: Mapping[str, tuple[T, ...]]) -> tuple[str, ...]:
    """Return the keys under which a layer is gone."""
    return tuple(key for key, layers in before.items() if len(after.get(key, ())) < len(layers))


def narrowed(carried: Load, keys: Collection[str], bringer: Bringer) -> Load:
    """Return what is carried less all that its bringer sees under other keys and names than `keys`."""
    facts = {
        key: layers if key in keys else _without(layers, bringer.facts.get(key))
        for key, layers in carried.facts.items()
    }
    artifacts = {
        name: layers if name in keys else _without(layers, bringer.artifacts.get(name))
        for name, layers in carried.artifacts.items()
    }
    return Load(
        {key: layers for key, layers in facts.items() if layers},
        {name: layers for name, layers in artifacts.items() if layers},
    )


# --- what must be carried ---------------------------------------------------------------------------


def marked(keys: Collection[str], before: Load, after: Load, bringer: Bringer) -> Marks:
    """Return the layers that are meant by keys which must be carried: what their bringer sees, or brings."""
    found = ((key, _meant(key, before, after, bringer)) for key in keys)
    return frozenset((key, place) for key, place in found if place is not None)


def _meant(key: str, before: Load, after: Load, bringer: Bringer) -> int | None:
    """Return the place of what the bringer sees under a key afterwards, or has put there unseen."""
    layers = after.facts.get(key, ())
    brought = difference_at(before.facts.get(key, ()), layers)
    if brought is not None:
        return brought
    seen = place_of(layers, bringer.facts.get(key))
    return last_place_of(layers, bringer.own.get(key)) if seen is None else seen


def lost(before: Load, after: Load, marks: Marks) -> tuple[str, ...]:
    """Return the keys under which a marked layer was dropped or got another value."""
    if not marks or after is before:
        return ()
    return tuple(sorted({key for key, place in marks if _is_lost(key, place, before, after)}))


def _is_lost(key: str, place: int, before: Load, after: Load) -> bool:
    old, new = before.facts.get(key, ()), after.facts.get(key, ())
    if _changed_at(old, new) != place:
        return False
    return len(new) < len(old) or not equal(old[place].value, new[place].value)


def followed(marks: Marks, before: Load, after: Load) -> Marks:
    """Return marks as they are once what is carried has changed: where a layer is gone, others move up."""
    if not marks or after is before:
        return marks
    found = ((key, _place_after(key, place, before, after)) for key, place in marks)
    return frozenset((key, place) for key, place in found if place is not None)


def _place_after(key: str, place: int, before: Load, after: Load) -> int | None:
    old, new = before.facts.get(key, ()), after.facts.get(key, ())
    at = _changed_at(old, new)
    if at is None or len(new) == len(old) or place < at:
        return place
    return None if place == at else place - 1


class Divided(NamedTuple):
    """A load as one reader gets it."""

    facts: dict[str, Fact]
    artifacts: dict[str, Artifact]
    rest: Load
    """Every layer of what they do not see the whole of."""
    withheld: Withheld | None
    """What they may be told of it: labels and counts."""


def is_cleared(items: Iterable[Fact | Artifact], clearance: Collection[str]) -> bool:
    """Return True if somebody with this clearance may see all of `items`."""
    labels = [label for item in items if item.labels for label in item.labels]
    return not labels or frozenset(clearance).issuperset(labels)


def is_seen_whole(load: Load, clearance: Collection[str] | None) -> bool:
    """Return True if somebody with this clearance (None: for everything) sees every layer of a load."""
    cleared = None if clearance is None else frozenset(clearance)
    every: tuple[tuple[Fact | Artifact, ...], ...] = (*load.facts.values(), *load.artifacts.values())
    for layers in every:
        labels = layers[0].labels
        if len(layers) > 1 or (labels and cleared is not None and not cleared.issuperset(labels)):
            return False
    return True


def divide(load: Load, clearance: Collection[str] | None) -> Divided:
    """Return what somebody with this clearance (None: for everything) sees, and what is kept back."""
    cleared = None if clearance is None else frozenset(clearance)
    facts, other_facts, hidden = _divided(load.facts, cleared)
    artifacts, other_artifacts, hidden_artifacts = _divided(load.artifacts, cleared)
    labels = {label for item in hidden for label in item.labels}
    labels |= {label for item in hidden_artifacts for label in item.labels}
    told = Withheld(labels=tuple(sorted(labels)), facts=len(hidden), artifacts=len(hidden_artifacts))
    rest = Load(other_facts, other_artifacts)
    return Divided(facts, artifacts, rest, told if hidden or hidden_artifacts else None)


def _divided(
    load: dict[str, tuple[T, ...]], cleared: frozenset[str] | None
) -> tuple[dict[str, T], dict[str, tuple[T, ...]], list[T]]:
    seen, rest, hidden = dict[str, T](), dict[str, tuple[T, ...]](), list[T]()
    for key, layers in load.items():
        shown = [item for item in layers if cleared is None or cleared.issuperset(item.labels)]
        if shown:
            seen[key] = shown[0]
        if len(layers) > 1 or not shown:
            rest[key] = layers
        if cleared is not None and len(shown) < len(layers):
            hidden += [item for item in layers if not cleared.issuperset(item.labels)]
    return seen, rest, hidden


# --- what is out of the holder's sight ----------------------------------------------------------------


class Stash(msgspec.Struct, frozen=True, gc=False):
    """Every layer of what is carried and the present holder does not see the whole of."""

    facts: dict[str, tuple[Fact, ...]] = {}
    artifacts: dict[str, tuple[Artifact, ...]] = {}
    marks: Marks = frozenset()

    @classmethod
    def of(cls, withheld: FactsWithheld | Beneath | None) -> "Stash":
        """Return what an event keeps."""
        if withheld is None:
            return NO_STASH
        facts: dict[str, tuple[Fact, ...]] = {}
        marks: set[tuple[str, int]] = set()
        for at, fact in enumerate(withheld.facts):
            above = facts.get(fact.key, ())
            facts[fact.key] = (*above, fact)
            if at in withheld.must_carry:
                marks.add((fact.key, len(above)))
        artifacts: dict[str, tuple[Artifact, ...]] = {}
        for item in withheld.artifacts:
            artifacts[item.name] = (*artifacts.get(item.name, ()), item)
        return cls(facts, artifacts, frozenset(marks))

    def load(self, handoff: Handoff | None) -> Load:
        """Return all that is carried: what `handoff` shows, and this."""
        shown, named = ((), ()) if handoff is None else (handoff.facts, handoff.artifacts)
        facts: dict[str, tuple[Fact, ...]] = {fact.key: (fact,) for fact in shown}
        artifacts: dict[str, tuple[Artifact, ...]] = {item.name: (item,) for item in named}
        if self.facts:
            facts = dict(sorted((facts | self.facts).items()))
        if self.artifacts:
            artifacts = dict(sorted((artifacts | self.artifacts).items()))
        return Load(facts, artifacts)

    def marks_beside(self, handoff: Handoff) -> Marks:
        """Return every layer that must be carried: of what `handoff` shows, and of this."""
        asked = handoff.constraints.must_carry
        if not asked:
            return self.marks
        return self.marks.union((key, 0) for key in asked if key not in self.facts)


NO_STASH = Stash()

# --- what was handed over before ----------------------------------------------------------------------


_HASHED_BEYOND = 64
"""Bytes of the longest value that a history keeps as it is."""


@dataclass(slots=True)
class FactHistory:
    """Every fact that an admitted handoff held, withheld or not."""

    _lately: list[tuple[Fact, ...]] = field(default_factory=list)
    """Facts as each admitted handoff held them, since `is_new` was last asked."""
    _before: dict[tuple[str, bytes], set[tuple[str, ...]]] = field(default_factory=dict)
    """By key and value (`_known_by`) of those before them: the labels that it was held with."""
    labels: dict[str, frozenset[str]] = field(default_factory=dict)
    """By key: every label that a fact of this key ever had in this request."""
    _own: dict[str, dict[str, tuple[Fact, ...]]] = field(default_factory=dict)
    """By agent and key: what it brought without being cleared to see it again."""

    def remember(self, facts: tuple[Fact, ...]) -> None:
        """Take in what one handoff holds."""
        self._lately.append(facts)
        for fact in facts:
            if fact.labels:
                known = self.labels.get(fact.key, _NO_LABELS)
                if not known.issuperset(fact.labels):
                    self.labels[fact.key] = known.union(fact.labels)

    def note_unseen(self, agent: str, clearance: Collection[str], before: Load, after: Load) -> None:
        """Note what `agent` brought between two loads and is not cleared to see."""
        cleared = frozenset(clearance)
        for key, layers in after.facts.items():
            if is_cleared(layers, cleared):
                continue
            new = difference(before.facts.get(key, ()), layers)
            if new is not None and not cleared.issuperset(new.labels):
                own = self._own.setdefault(agent, {})
                own[key] = (*own.get(key, ()), new)

    def own(self, agent: str) -> dict[str, Fact]:
        """Return by key what `agent` brought last without being cleared to see it again."""
        return {key: facts[-1] for key, facts in self._own.get(agent, {}).items()}

    def is_new(self, fact: Fact, agent: str = "", clearance: Collection[str] | None = None) -> bool:
        """Return True if no handoff that its bringer may know of held this key with this value.

        Args:
            clearance: of the bringer; None: for everything.
        """
        value = _known_by(fact.value)
        said = self._own.get(agent, {}).get(fact.key, ())
        if any(_known_by(own.value) == value for own in said):
            return False
        self.condense()
        known = self._before.get((fact.key, value), ())
        return not (known if clearance is None else any(set(labels) <= set(clearance) for labels in known))

    def __len__(self) -> int:
        """Return how many values it knows by themselves, and not by the handoff that held them."""
        return len(self._before)

    def condense(self) -> None:
        """Look at each handoff once, and let it go: a request that asks at every hop looks at none again."""
        for facts in self._lately:
            for fact in facts:
                self._before.setdefault((fact.key, _known_by(fact.value)), set()).add(fact.labels)
        self._lately.clear()


def _known_by(value: object) -> bytes:
    """Return what stands for a value among those that were held: its canonical form, or a long one's hash."""
    form = canonical(value)
    return form if len(form) <= _HASHED_BEYOND else b"#" + sha256(form).digest()
