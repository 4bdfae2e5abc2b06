"""What became of a lead's tasks, as its code sees it: structured results and typed errors."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from mesh.agent._values import KnownFacts, Unfit, read_as
from mesh.agent.errors import FactUnusable, UnknownFact
from protocol.wire.assignment import TaskError, TaskResult, TaskStatus
from protocol.wire.commands import Usage
from protocol.wire.handoff import Artifact, Fact
from protocol.wire.ids import AgentName

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result:
    """One task's end. A failure is an error with a code, never a sentence that a model made of it."""

    name: str
    status: TaskStatus
    agent: AgentName
    """Who had it last."""
    told: TaskResult
    """The whole, as the guard told it."""

    @property
    def delivered(self) -> bool:
        """True for a success."""
        return self.status == "delivered"

    @property
    def error(self) -> TaskError | None:
        """Why it failed: `code`, `message`, `agent`, `attempts`, `lineage`, and `origin`, the error below."""
        return self.told.error

    @property
    def summary(self) -> str:
        """One line: what came out."""
        return self.told.summary

    @property
    def facts(self) -> Mapping[str, object]:
        """Facts by key, values only."""
        return MappingProxyType(KnownFacts((fact.key, fact.value) for fact in self.told.facts))

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return self.told.artifacts

    @property
    def withheld(self) -> tuple[str, ...]:
        """Labels of what this agent may not see of it."""
        return () if self.told.withheld is None else self.told.withheld.labels

    @property
    def cost(self) -> Usage:
        """Of the task and all below it."""
        return self.told.cost

    @property
    def attempts(self) -> int:
        return self.told.attempts

    @property
    def duration_s(self) -> float:
        return self.told.duration_s

    def fact(self, key: str, kind: type[T]) -> T:
        """Return a fact as an object of `kind`, as `Turn.fact` does. Raises FactUnusable."""
        return fact_as(self.told.facts, key, kind, withheld=self.withheld, where=f" of task {self.name}")


class Results(dict[str, Result]):
    """Results by task; a name that is not among them is answered with those that are."""

    def __init__(self, told: Iterable[TaskResult]) -> None:
        super().__init__((each.name, Result(each.name, each.status, each.agent, each)) for each in told)

    def __missing__(self, name: str) -> Result:
        raise UnknownFact(name, self, kind="result")


def fact_as(
    facts: Iterable[Fact], key: str, kind: type[T], *, withheld: tuple[str, ...] = (), where: str = ""
) -> T:
    """Return the fact of a key as an object of `kind`.

    Raises FactUnusable if there is no such fact, or it does not fit.
    """
    values = {fact.key: fact.value for fact in facts}
    if key not in values:
        there = f"there are {', '.join(values)}" if values else "there are none"
        hidden = f"; withheld from this agent: {', '.join(withheld)}" if withheld else ""
        raise FactUnusable(f"no fact {key!r}{where}: {there}{hidden}")
    try:
        return read_as(kind, values[key])
    except Unfit as wrong:
        name = getattr(kind, "__name__", str(kind))
        raise FactUnusable(f"the fact {key!r}{where} is no {name}: {wrong}") from wrong
