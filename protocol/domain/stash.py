"""The stash: what travels with a request out of sight of the agent that holds the work now."""

from dataclasses import dataclass, field

from protocol.domain.layers import Load, Marks
from protocol.wire.events import Beneath, FactsWithheld
from protocol.wire.handoff import Artifact, Fact, Handoff


@dataclass(slots=True)
class Stash:
    """Every layer of what is carried and the present holder does not see the whole of."""

    facts: dict[str, tuple[Fact, ...]] = field(default_factory=dict)
    artifacts: dict[str, tuple[Artifact, ...]] = field(default_factory=dict)
    marks: Marks = frozenset()

    @classmethod
    def of(cls, withheld: FactsWithheld | Beneath | None) -> "Stash":
        """Return what an event keeps."""
        if withheld is None:
            return cls()
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
        facts = {fact.key: (fact,) for fact in shown}
        artifacts = {item.name: (item,) for item in named}
        return Load(facts | self.facts, artifacts | self.artifacts)

    def marks_beside(self, handoff: Handoff) -> Marks:
        """Return every layer that must be carried: of what `handoff` shows, and of this."""
        keys = set(handoff.constraints.must_carry) - self.facts.keys()
        return self.marks.union((key, 0) for key in keys) if keys else self.marks
