"""The stash: what travels with a request out of sight of the agent that holds the work now."""

from dataclasses import dataclass, field

from protocol.events import FactsWithheld
from protocol.handoff import Artifact, Fact, Handoff


@dataclass(slots=True)
class Stash:
    """What is carried but withheld from the present holder."""

    facts: dict[str, Fact] = field(default_factory=dict)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    must_carry: tuple[str, ...] = ()
    """Keys among the facts that must be carried."""

    @classmethod
    def of(cls, withheld: FactsWithheld) -> "Stash":
        """Return what one withholding keeps."""
        return cls(
            {fact.key: fact for fact in withheld.facts},
            {item.name: item for item in withheld.artifacts},
            withheld.must_carry,
        )

    def beside(self, handoff: Handoff) -> "Stash":
        """Return what of it a handoff does not show."""
        if not self.facts and not self.artifacts:
            return self
        shown = {fact.key for fact in handoff.facts}
        named = {item.name for item in handoff.artifacts}
        return Stash(
            {key: fact for key, fact in self.facts.items() if key not in shown},
            {name: item for name, item in self.artifacts.items() if name not in named},
            tuple(key for key in self.must_carry if key not in shown),
        )
