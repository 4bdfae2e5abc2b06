"""A plan: steps for agents of the fleet, with what each needs of the others.

The form that a planner fills in is made from the fleet, so that it can name no agent and no intent that
is not there. What no form can say (a cycle, two steps of one name, a need that leads nowhere) is told as
mistakes, all at once.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from mesh.agent.errors import Permanent
from mesh.model.arguments import Arguments, FactArgument, Line
from mesh.model.prompt import one_line
from protocol.wire.config import AgentEntry

MOST_STEPS = 50
"""As many tasks as a request may have under the policy that ships."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"


class PlanInvalid(Permanent, code="plan.invalid"):
    """The planner gave no plan that can be carried out, in as many tries as it has."""


class PlanStep(Arguments):
    """One piece of work."""

    name: Annotated[str, Field(pattern=NAME, max_length=64, description="Unique in the plan.")]
    goal: Annotated[Line, Field(description="One line: what is wanted and why.")]
    agent: str | None = Field(default=None, description="Who does it; without it, one is picked by intent.")
    intent: str | None = None
    needs: tuple[str, ...] = Field(default=(), description="Steps whose results it is given, and waits for.")
    facts: tuple[FactArgument, ...] = Field(default=(), description="What only this step has to know.")

    @property
    def line(self) -> str:
        needs = f", needs {', '.join(self.needs)}" if self.needs else ""
        return one_line(f"- {self.name} ({self.agent or self.intent}{needs}): {self.goal}")


class Plan(Arguments):
    """Steps that can be carried out in an order that their needs leave open."""

    steps: tuple[PlanStep, ...]

    def mistakes(self, workers: Iterable[AgentEntry], done: Collection[str] = ()) -> list[str]:
        """Return what no form can say, all of it; nothing for a plan that can be carried out.

        Args:
            workers: the agents that there are.
            done: names of earlier steps, which these may need and may not be called.
        """
        entries = {entry.name: entry for entry in workers}
        names = [step.name for step in self.steps]
        wrong = [f"two steps are called {name!r}" for name, times in Counter(names).items() if times > 1]
        wrong += [f"there was a step {name!r} before: choose another name" for name in names if name in done]
        for step in self.steps:
            lost = [need for need in step.needs if need not in names and need not in done]
            wrong += [f"{step.name} needs {need!r}, and there is no such step" for need in lost]
            wrong += _unplaced(step, entries)
        try:
            TopologicalSorter({step.name: step.needs for step in self.steps}).prepare()
        except CycleError as cycle:
            wrong.append(f"these steps wait for each other: {' > '.join(cycle.args[1])}")
        return wrong


def _unplaced(step: PlanStep, entries: dict[Any, AgentEntry]) -> list[str]:
    """Return why nobody can take a step, if so."""
    if step.agent is None:
        return [] if step.intent is not None else [f"{step.name} names neither an agent nor an intent"]
    takes = entries[step.agent].intents if step.agent in entries else None
    if step.intent is None or takes is None or step.intent in takes:
        return []
    return [f"{step.agent} does not take {step.intent!r}, it takes {', '.join(takes) or 'none'}"]


@lru_cache(64)
def plan_form(agents: tuple[str, ...], intents: tuple[str, ...], most: int = MOST_STEPS) -> type[Plan]:
    """Return the form of a plan for these agents and intents, of `most` steps at most."""
    chosen = {"agent": agents, "intent": intents}
    fields: dict[str, Any] = {}
    for field, names in chosen.items():
        words = PlanStep.model_fields[field].description
        kind: Any = Literal[names] | None if names else None
        fields[field] = (kind, Field(default=None, description=words))
    step: Any = create_model("PlanStep", __base__=PlanStep, **fields)
    return create_model("Plan", __base__=Plan, steps=(tuple[step, ...], Field(max_length=most)))


def intents_of(workers: Iterable[AgentEntry]) -> tuple[str, ...]:
    """Return the intents that these agents list."""
    return tuple(sorted({intent for entry in workers for intent in entry.intents or ()}))
