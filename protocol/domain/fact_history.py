"""The history of a request's facts: which were handed over, under which labels, and by whom unseen."""

from collections.abc import Collection
from dataclasses import dataclass, field

from protocol.domain.layers import Load, difference
from protocol.wire.handoff import Fact
from protocol.wire.values import equal


@dataclass(slots=True)
class FactHistory:
    """Every fact that an admitted handoff held, withheld or not."""

    handoffs: list[tuple[Fact, ...]] = field(default_factory=list)
    """Facts as each admitted handoff held them."""
    labels: dict[str, frozenset[str]] = field(default_factory=dict)
    """By key: every label that a fact of this key ever had in this request."""
    _own: dict[str, dict[str, tuple[Fact, ...]]] = field(default_factory=dict)
    """By agent and key: what it brought without being cleared to see it again."""

    def remember(self, facts: tuple[Fact, ...]) -> None:
        """Take in what one handoff holds."""
        self.handoffs.append(facts)
        for fact in facts:
            if fact.labels:
                self.labels[fact.key] = self.labels.get(fact.key, frozenset()).union(fact.labels)

    def note_unseen(self, agent: str, clearance: Collection[str], before: Load, after: Load) -> None:
        """Note what `agent` brought between two loads and is not cleared to see."""
        cleared = frozenset(clearance)
        for key, layers in after.facts.items():
            if all(cleared.issuperset(fact.labels) for fact in layers):
                continue
            new = difference(before.facts.get(key, ()), layers)
            if new is not None and not cleared.issuperset(new.labels):
                own = self._own.setdefault(agent, {})
                own[key] = (*own.get(key, ()), new)

    def own(self, agent: str) -> dict[str, Fact]:
        """Return by key what `agent` brought last without being cleared to see it again."""
        return {key: facts[-1] for key, facts in self._own.get(agent, {}).items()}

    def is_new(self, fact: Fact, agent: str = "", clearance: Collection[str] | None = None) -> bool:
        """Return True if no handoff held this key with this value, as far as its bringer may know.

        Args:
            clearance: of the bringer; None: for everything.
        """
        cleared = None if clearance is None else frozenset(clearance)
        said = self._own.get(agent, {}).get(fact.key, ())
        held = (
            known
            for facts in (*self.handoffs, said)
            for known in facts
            if known.key == fact.key
            and (facts is said or cleared is None or cleared.issuperset(known.labels))
        )
        return not any(equal(known.value, fact.value) for known in held)
