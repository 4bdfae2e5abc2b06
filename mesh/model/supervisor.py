"""A supervisor: plans, delegates, checks, and puts together what came out.

    lead = Supervisor(
        "lead",
        planner=Path(__file__).with_name("planner.md"),
        synthesizer=Path(__file__).with_name("synthesizer.md"),
        check=contradictions,
    )

A plan is a graph of steps. Each is delegated as soon as what it needs is there, and is given those results
and no others. What `check` finds wrong is done again with the flaw as feedback; what is wrong with the plan,
and what failed, goes back to the planner. The planner decides who does what; the synthesizer, another prompt,
writes the answer from the results.

Between rounds it knows nothing but what its journal says (`TurnCourse`).
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.agent.definition import Agent, checked_name
from mesh.model.agent import model_for, prepared, require_fallback, require_labels
from mesh.model.anthropic.model import WORK
from mesh.model.conduct import MOST_OPEN, MOST_REVISIONS, Charter, Check, Conduct
from mesh.model.context_window import ContextWindow
from mesh.model.course import follow
from mesh.model.moves import Labels
from mesh.model.port import Model
from mesh.model.prompt import Instructions, load_instructions

if TYPE_CHECKING:
    from mesh.agent.turn import Turn
    from protocol.wire.commands import Move

PLANNER, SYNTHESIZER = "planner", "synthesizer"
"""Behind the agent's name and a `-`: as whom its two models speak, in a script for instance."""


class Supervisor(Agent):
    """A lead that plans by one prompt and answers by another. For requests of topology `supervised`.

    As a worker it is a lead of its own tasks, and delivers what it would answer.

    Args:
        name: as in the fleet file. Its models speak as `<name>-planner` and `<name>-synthesizer`.
        planner: how to divide the work; a file whose first line is its version, or `Instructions`.
        synthesizer: how to answer from the results; another text.
        check: judges the results once all steps are done: returns what is wrong, as `Flaw`s. A flaw of a
            step has it done again, with the flaw as the fact `feedback`, and then all that rests on it; a
            flaw of no step goes to the planner. It may call tools by `turn.call`; otherwise it rests on its
            arguments alone, as it runs again in each round.
        workers: agents it may delegate to, among those the fleet file allows; None for all of these.
        model: of the synthesizer; the pinned id, or a model of your own, as of a `ClaudeAgent`.
        planner_model: of the planner; the same by default.
        fallback: the id of one that is asked instead when a model is overloaded or failing.
        script: rules for the scripted model, which stands in without a key.
        labels: labels that facts of a key must have, whatever the model says.
        output_type: the type of its answers, as pydantic reads it; None for words.
        window: how much of results its prompts hold.
        tries: replies that a planner, or a synthesizer, has for a plan or an answer that can be used.
        most_plans: how often the planner is asked in one turn.
        most_revisions: how often one step is done again; the policy's `max_revisions` (3) holds anyway.
        most_open: tasks open at once; not more than the policy's `max_open_tasks` (8).
        second_agent: True if a step that fails may be given, once, to another agent that takes its intent.

    Raises ValueError as `ClaudeAgent` does, and where planner and synthesizer are the same text.
    """

    def __init__(
        self,
        name: str,
        *,
        planner: Instructions | Path,
        synthesizer: Instructions | Path,
        check: Check | None = None,
        workers: Iterable[str] | None = None,
        model: str | Model = WORK,
        planner_model: str | Model | None = None,
        fallback: str | None = None,
        script: Path | None = None,
        labels: Labels | None = None,
        output_type: Any = None,
        window: ContextWindow | None = None,
        tries: int = 3,
        most_plans: int = 3,
        most_revisions: int = MOST_REVISIONS,
        most_open: int = MOST_OPEN,
        second_agent: bool = False,
        max_tokens: int | None = None,
        version: str = "1",
        description: str = "",
        concurrency: int = 8,
    ) -> None:
        plans, answers = _loaded(planner), _loaded(synthesizer)
        if plans.text == answers.text:
            raise ValueError("planner and synthesizer are two prompts: one that does both does neither well")
        if isinstance(workers, str):
            raise ValueError("`workers` is a list of agents")
        require_labels(labels or {})
        for pinned_to in (model, model if planner_model is None else planner_model):
            require_fallback(pinned_to, fallback)
        chosen = partial(model_for, script=script, fallback=fallback, max_tokens=max_tokens)
        charter = Charter(
            planner=plans.text,
            synthesizer=answers.text,
            check=check,
            workers=None if workers is None else frozenset(map(checked_name, workers)),
            labels=labels or {},
            output_type=output_type,
            window=window or ContextWindow(MOST_TOKENS),
            tries=tries,
            most_plans=most_plans,
            most_revisions=most_revisions,
            most_open=most_open,
            second_agent=second_agent,
        )

        def models() -> tuple[Model, Model]:
            return (
                chosen(f"{name}-{PLANNER}", model=model if planner_model is None else planner_model),
                chosen(f"{name}-{SYNTHESIZER}", model=model),
            )

        async def handle(turn: "Turn") -> "Move":
            plan_by, answer_by = models()
            return await follow(turn, lambda course: Conduct(course, charter, plan_by, answer_by).run())

        super().__init__(
            name=checked_name(name),
            handler=handle,
            version=version,
            description=description,
            prompt_version=f"{plans.version}+{answers.version}",
            model=model.mode if isinstance(model, Model) else model,
            own_model=isinstance(model, Model) and not model.is_billed,
            script=script,
            concurrency=concurrency,
            prepare=partial(prepared, models, output_type),
        )


MOST_TOKENS = 100_000
"""Of a context window where none is said: half of what models have at the least that the field uses."""


def _loaded(given: Instructions | Path) -> Instructions:
    return load_instructions(given) if isinstance(given, Path) else given
