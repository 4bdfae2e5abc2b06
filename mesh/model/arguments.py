"""Forms that a model fills in for moves and plans: pydantic classes and their JSON schemas."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from mesh.agent.errors import Permanent, ToolsUnusable
from mesh.agent.tools import untitled
from mesh.agent.values import short
from mesh.model.prompt import one_line
from protocol.wire.config import AgentEntry

_KEPT = 256
"""Size of the schema cache: one per set of intents, and one per move."""

Text = Annotated[str, Field(pattern=r"\S")]
Line = Annotated[str, Field(pattern=r"\S", max_length=500, description="One line.")]


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FactArgument(Arguments):
    key: Annotated[str, Field(min_length=1)]
    value: JsonValue
    labels: tuple[str, ...] = Field(default=(), description="`pii` for what tells who somebody is.")


class ArtifactArgument(Arguments):
    name: Annotated[str, Field(min_length=1)]
    uri: Annotated[str, Field(min_length=1)]
    media_type: str = ""
    digest: str = ""
    size: Annotated[int, Field(ge=0, description="In bytes.")] | None = None
    labels: tuple[str, ...] = ()


class BudgetArgument(Arguments):
    nano_dollars: Annotated[int, Field(ge=0)] | None = None
    tokens: Annotated[int, Field(ge=0)] | None = None
    model_calls: Annotated[int, Field(ge=0)] | None = None


class ConstraintsArgument(Arguments):
    max_resolution_time_s: Annotated[float, Field(gt=0)] | None = None
    allowed_actions: tuple[str, ...] | None = Field(default=None, description="Tools; no others are called.")
    budget: BudgetArgument | None = None
    must_carry: tuple[str, ...] = Field(default=(), description="Keys of facts that nobody drops or changes.")


class Bringing(Arguments):
    facts: tuple[FactArgument, ...] = Field(default=(), description="What is new; the rest travels on.")


class Giving(Bringing):
    artifacts: tuple[ArtifactArgument, ...] = Field(
        default=(), description="References to large things that are new; the rest travel on."
    )
    drop: tuple[str, ...] = Field(default=(), description="Keys of facts not to carry on.")


class TransferArguments(Giving):
    summary: Annotated[Line, Field(description="One line: what is wanted and why.")]
    intent: str | None = None
    constraints: ConstraintsArgument | None = Field(
        default=None, description="Only where narrower than yours."
    )
    return_to: str | None = Field(default=None, description="Whom a hand-back goes to, if not to you.")
    no_return: bool = Field(default=False, description="Nobody gives it back to you.")


class HandBackArguments(Giving):
    reason: Line


class EscalateArguments(Bringing):
    reason: Line


class AskArguments(Arguments):
    """Arguments of `ask` where there are no people: the client is the only one to ask."""

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)

    question: Annotated[str, Field(pattern=r"\S", max_length=2_000)]
    reply_schema: dict[str, JsonValue] | None = Field(
        default=None, alias="schema", description="JSON Schema of the reply."
    )
    expires_s: Annotated[float, Field(gt=0, description="Seconds to wait for the reply.")] | None = None


class AskAnybodyArguments(AskArguments):
    """Arguments of `ask` where the fleet has people."""

    of: Literal["client", "human"] = Field(
        default="client", description="`human` asks the fleet's own people."
    )


class CompleteArguments(Arguments):
    answer: Text


# --- of trees -----------------------------------------------------------------------------------------


class TaskArguments(Arguments):
    """One task where nobody is named: `task_form` makes the form of those that there are."""

    name: Annotated[str, Field(min_length=1, max_length=128, description="Unique; its result has this name.")]
    summary: Annotated[Line, Field(description="One line: what is wanted and why.")]
    to: str | None = Field(default=None, description="The agent; without it, one is picked by the intent.")
    intent: str | None = None
    facts: tuple[FactArgument, ...] = Field(default=(), description="What is new; the rest goes along.")
    artifacts: tuple[ArtifactArgument, ...] = ()
    carry: tuple[str, ...] | None = Field(
        default=None, description="Keys of your facts that it gets too; by default all."
    )
    uses: tuple[str, ...] = Field(default=(), description="Earlier tasks whose results it is given.")
    revises: str = Field(default="", description="The earlier task that it does again; say why as a fact.")
    fallback: bool = Field(default=False, description="Another agent may have it, once, if it fails.")
    constraints: ConstraintsArgument | None = Field(
        default=None, description="Only where narrower than yours."
    )


class DelegateArguments(Arguments):
    tasks: tuple[TaskArguments, ...] = Field(default=(), description="None: wait for those that are open.")
    join: Literal["all", "any"] | Annotated[int, Field(ge=1, le=1_000)] = Field(
        default="all", description="When you go on: after all, the first, or so many of them."
    )
    within_s: Annotated[float, Field(gt=0, description="Seconds after which you go on anyway.")] | None = None
    cancel: tuple[str, ...] = Field(default=(), description="Open tasks to call off.")


class DeliverArguments(Bringing):
    summary: Annotated[Line, Field(description="One line: what came out.")]
    facts: tuple[FactArgument, ...] = Field(default=(), description="The result, as facts.")
    artifacts: tuple[ArtifactArgument, ...] = Field(default=(), description="References to large results.")


class GiveUpArguments(Arguments):
    reason: Line


class PostArguments(Arguments):
    facts: Annotated[tuple[FactArgument, ...], Field(min_length=1)]


# --- forms and schemas --------------------------------------------------------------------------------


@lru_cache(_KEPT)
def answer_form(output_type: Any) -> type[BaseModel]:
    """Return the arguments of a `complete` with an answer of this type.

    Raises ToolsUnusable for a type without a JSON schema.
    """
    try:
        form = create_model("CompleteArguments", __base__=CompleteArguments, answer=(output_type, ...))
        form.model_json_schema()
    except (PydanticUserError, PydanticSchemaGenerationError) as wrong:
        why = short(str(wrong).partition("\n")[0])
        raise ToolsUnusable(f"the answer's type has no JSON schema ({why})") from wrong
    return form


@lru_cache(_KEPT)
def remembering(form: type[BaseModel]) -> type[BaseModel]:
    """Return the arguments of a `complete` that may leave facts to the request's conversation."""
    words = "Facts that later requests of this conversation begin with. What nobody will need is left out."
    remember: Any = (tuple[FactArgument, ...], Field(default=(), description=words))
    return create_model("CompleteArguments", __base__=form, remember=remember)


@lru_cache(_KEPT)
def schema_of(arguments: type[BaseModel]) -> Mapping[str, Any]:
    """Return the schema of a move's arguments. Building it takes a millisecond, and a turn needs several."""
    return untitled(arguments.model_json_schema())


@lru_cache(_KEPT)
def transfer_form(intents: tuple[str, ...] | None) -> type[BaseModel]:
    """Return the arguments of a transfer to an agent that takes these intents, or any."""
    if not intents:
        return TransferArguments
    intent: Any = Literal[intents]
    return create_model("TransferArguments", __base__=TransferArguments, intent=(intent | None, None))


@lru_cache(_KEPT)
def carrying(form: type[BaseModel], carried: type[BaseModel]) -> type[BaseModel]:
    """Return the arguments of a transfer whose facts have a form."""
    facts: Any = (carried, Field(description="What is new, in this form; the rest travels on."))
    return create_model("TransferArguments", __base__=form, facts=facts)


@lru_cache(_KEPT)
def task_form(agents: tuple[str, ...], intents: tuple[str, ...] | None) -> type[BaseModel]:
    """Return the arguments of a `delegate` to these agents.

    Args:
        intents: those that any of the agents takes; None if an agent takes all.
    """
    to: Any = Literal[agents]
    words = TaskArguments.model_fields["to"].description
    fields: dict[str, Any] = {"to": (to | None, Field(default=None, description=words))}
    if intents:
        intent: Any = Literal[intents]
        fields["intent"] = (intent | None, None)
    task: Any = create_model("TaskArguments", __base__=TaskArguments, **fields)
    tasks = Field(default=(), description=DelegateArguments.model_fields["tasks"].description)
    return create_model("DelegateArguments", __base__=DelegateArguments, tasks=(tuple[task, ...], tasks))


@lru_cache(_KEPT)
def delivery_form(output_type: Any) -> type[BaseModel]:
    """Return the arguments of a `deliver` with an answer of this type. Raises ToolsUnusable."""
    answer_form(output_type)
    return create_model("DeliverArguments", __base__=DeliverArguments, answer=(output_type, ...))


# --- plans ----------------------------------------------------------------------------------------------
#
# A plan's form is made from the fleet: it cannot name an agent or an intent that does not exist.
# What a form cannot express are mistakes of the plan: a cycle, two steps of one name, a need of no step.

MOST_STEPS = 50
"""The number of tasks that a request may have under the default policy."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"


class PlanInvalid(Permanent, code="plan.invalid"):
    """The planner returned no usable plan within its number of tries."""


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
        """Return all mistakes that the form cannot exclude; empty if the plan can be carried out.

        Args:
            workers: the available agents.
            done: names of earlier steps: this plan's steps may need them and must not be called the same.
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
    """Return why no agent can take a step; empty if one can."""
    if step.agent is None:
        return [] if step.intent is not None else [f"{step.name} names neither an agent nor an intent"]
    takes = entries[step.agent].intents if step.agent in entries else None
    if step.intent is None or takes is None or step.intent in takes:
        return []
    return [f"{step.agent} does not take {step.intent!r}, it takes {', '.join(takes) or 'none'}"]


@lru_cache(64)
def plan_form(agents: tuple[str, ...], intents: tuple[str, ...]) -> type[Plan]:
    """Return the form of a plan for these agents and intents, with at most `MOST_STEPS` steps."""
    chosen = {"agent": agents, "intent": intents}
    fields: dict[str, Any] = {}
    for field, names in chosen.items():
        words = PlanStep.model_fields[field].description
        kind: Any = Literal[names] | None if names else None
        fields[field] = (kind, Field(default=None, description=words))
    step: Any = create_model("PlanStep", __base__=PlanStep, **fields)
    return create_model("Plan", __base__=Plan, steps=(tuple[step, ...], Field(max_length=MOST_STEPS)))


def intents_of(workers: Iterable[AgentEntry]) -> tuple[str, ...]:
    """Return the intents that these agents list."""
    return tuple(sorted({intent for entry in workers for intent in entry.intents or ()}))
