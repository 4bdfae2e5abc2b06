"""The stash: what travels with a request out of sight of the agent that holds the work now."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol.carry import Load, T
from protocol.wire.events import FactsWithheld
from protocol.wire.handoff import Artifact, Fact, Handoff
from protocol.wire.values import equal


@dataclass(slots=True)
class Stash:
    """Every layer of what is carried and the present holder does not see the whole of."""

    facts: dict[str, tuple[Fact, ...]] = field(default_factory=dict)
    artifacts: dict[str, tuple[Artifact, ...]] = field(default_factory=dict)
    must_carry: tuple[str, ...] = ()
    """Keys whose first layer must be carried, and is not what the holder sees."""

    @classmethod
    def of(cls, withheld: FactsWithheld) -> "Stash":
        """Return what one withholding keeps."""
        facts: dict[str, tuple[Fact, ...]] = {}
        for fact in withheld.facts:
            facts[fact.key] = (*facts.get(fact.key, ()), fact)
        artifacts: dict[str, tuple[Artifact, ...]] = {}
        for item in withheld.artifacts:
            artifacts[item.name] = (*artifacts.get(item.name, ()), item)
        return cls(facts, artifacts, withheld.must_carry)

    def beside(self, handoff: Handoff) -> "Stash":
        """Return what of it a handoff does not show the whole of."""
        if not self.facts and not self.artifacts:
            return self
        shown = {fact.key: fact for fact in handoff.facts}
        named = {item.name for item in handoff.artifacts}
        return Stash(
            {key: layers for key, layers in self.facts.items() if len(layers) > 1 or key not in shown},
            {name: layers for name, layers in self.artifacts.items() if len(layers) > 1 or name not in named},
            tuple(
                key
                for key in self.must_carry
                if key not in shown or not equal(shown[key], self.facts.get(key, (None,))[0])
            ),
        )

    def load(self, handoff: Handoff | None) -> Load:
        """Return all that is carried: what `handoff` shows, and this."""
        shown, named = ((), ()) if handoff is None else (handoff.facts, handoff.artifacts)
        facts = {fact.key: (fact,) for fact in shown}
        artifacts = {item.name: (item,) for item in named}
        return Load(facts | self.facts, artifacts | self.artifacts)


def flat(layers: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    """Return the layers of every key, one after the other, as `FactsWithheld` lists them."""
    return tuple(item for each in layers for item in each)
