"""A supervisor: it plans, delegates, checks the results, and writes the answer from them.

    lead = Supervisor(
        "lead",
        planner=Path(__file__).with_name("planner.md"),
        synthesizer=Path(__file__).with_name("synthesizer.md"),
        check=contradictions,
    )

A plan is a graph of steps. Each step is delegated as soon as the results that it needs exist, and gets those
results and no others. If `check` finds a flaw in a step, it is done again with the flaw as feedback. Flaws of
the plan, and failures, go back to the planner. The planner decides who does what; the synthesizer, another
prompt, writes the answer from the results.

Between rounds it knows nothing but its journal (`RoundReplay`).
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from graphlib import TopologicalSorter
from inspect import isawaitable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pydantic import ValidationError

from mesh.agent.definition import Agent, checked_name
from mesh.agent.errors import Permanent, ToolArgumentsInvalid
from mesh.agent.hooks import Hooks
from mesh.agent.turn import Turn
from mesh.agent.values import Result, mistakes_in
from mesh.model.agent import prepared, require_fallback, require_labels
from mesh.model.arguments import Plan, PlanInvalid, PlanStep, intents_of, plan_form, schema_of
from mesh.model.choice import model_for
from mesh.model.context_window import ContextWindow, Passage
from mesh.model.moves import COMPLETE, DELIVER, Labels, MoveTools
from mesh.model.port import Model, ToolCall, ToolSpec
from mesh.model.prompt import (
    Instructions,
    PromptContext,
    context_now,
    load_instructions,
    one_line,
    render,
    shown_result,
)
from mesh.model.rounds import RoundReplay, follow
from mesh.model.single import NoAnswer, ask
from mesh.model.vendors import WORK
from protocol.wire.config import AgentEntry
from protocol.wire.handoff import Fact
from protocol.wire.moves import Move, Task

PLANNER, SYNTHESIZER = "planner", "synthesizer"
"""Suffixes after the agent's name and a `-`: the names of its two models, in a script for instance."""
MOST_TOKENS = 100_000
"""Size of the context window if none is given: half of the smallest one in common use."""
MOST_OPEN = 8
MOST_REVISIONS = 3
"""Both as in the default policy."""
FEEDBACK = "feedback"
"""The fact that tells a worker why its step is done again."""
PLAN = "plan"
_PLAN_WORDS = "Say which steps are to be done, by whom. Steps that need nothing of each other run at once."


class Flaw(NamedTuple):
    """A fault that a check found."""

    task: str
    """The step, by its name in the plan; empty for a fault of the plan itself."""
    what: str
    where: str = ""
    """Where in the result it is: a fact's key, a sentence, a source."""

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return one_line(f"{self.task or 'the plan'}: {self.what}{place}")


Check = Callable[[Turn, Mapping[str, Result]], Awaitable[Iterable[Flaw]] | Iterable[Flaw]]
"""Gets the newest result of each step, by the step's name."""


class DelegateRefused(Permanent, code="plan.refused"):
    """The guard refuses a plan, and the planner may not be asked again."""


class Supervisor(Agent):
    """A lead that plans by one prompt and answers by another. For requests of topology `supervised`.

    As a worker it leads tasks of its own, and delivers its answer.

    Args:
        name: as in the fleet file. Its models speak as `<name>-planner` and `<name>-synthesizer`.
        planner: how to divide the work; a file whose first line is its version, or `Instructions`.
        synthesizer: how to answer from the results; another text.
        check: judges the results once all steps are done, and returns the faults as `Flaw`s. A step with a
            flaw is done again, with the flaw as the fact `feedback`, and so are all steps that depend on it.
            A flaw without a step goes to the planner. It may call tools by `turn.call`; otherwise it must
            depend on its arguments alone, since it runs again in each round.
        workers: agents it may delegate to, among those the fleet file allows; None for all of these.
        model: the synthesizer's: the pinned id, or a custom model, as in `ClaudeAgent`.
        planner_model: the planner's; the same by default.
        fallback: the id of a model that is asked instead when one is overloaded or failing.
        script: rules for the scripted model, which is used without a key.
        labels: labels that facts of a key must have, whatever the model gives them.
        output_type: the type of its answers, as pydantic reads it; None for text.
        remembers: as in `ClaudeAgent`: True if its answers may leave facts to the conversation.
        window: limits how much of the results its prompts hold.
        tries: replies allowed to the planner, and to the synthesizer, for one usable plan or answer.
        most_plans: how often the planner is asked in one turn.
        most_revisions: how often one step is done again; the policy's `max_revisions` (3) applies anyway.
        most_open: tasks open at once; not more than the policy's `max_open_tasks` (8).
        second_agent: True if a failed step may be given, once, to another agent that takes its intent.
        hooks: as in `ClaudeAgent`.

    Raises ValueError as `ClaudeAgent` does, and if planner and synthesizer are the same text.
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
        remembers: bool = False,
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
        hooks: Hooks | None = None,
    ) -> None:
        plans, answers = load_instructions(planner), load_instructions(synthesizer)
        if plans.text == answers.text:
            raise ValueError("planner and synthesizer are two prompts: one that does both does neither well")
        if isinstance(workers, str):
            raise ValueError("`workers` is a list of agents")
        require_labels(labels or {})
        for pinned_to in (model, model if planner_model is None else planner_model):
            require_fallback(pinned_to, fallback)
        chosen = partial(model_for, script=script, fallback=fallback, max_tokens=max_tokens)
        self.plans_by, self.answers_by = plans.text, answers.text
        self.check = check
        self.workers = None if workers is None else frozenset(map(checked_name, workers))
        self.labels = labels or {}
        self.output_type, self.remembers = output_type, remembers
        self.window = window or ContextWindow(MOST_TOKENS)
        self.tries = tries
        self.most_plans, self.most_revisions, self.most_open = most_plans, most_revisions, most_open
        self.second_agent = second_agent

        def models() -> tuple[Model, Model]:
            return (
                chosen(f"{name}-{PLANNER}", model=model if planner_model is None else planner_model),
                chosen(f"{name}-{SYNTHESIZER}", model=model),
            )

        async def handle(turn: Turn) -> Move:
            plan_by, answer_by = models()
            return await follow(turn, lambda replay: Conduct(replay, self, plan_by, answer_by).run())

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
            hooks=hooks,
            prepare=partial(prepared, models, output_type),
        )


class Conduct:
    """How a supervisor conducts one turn. `run` makes the same moves in every round."""

    def __init__(self, replay: RoundReplay, lead: Supervisor, planner: Model, synthesizer: Model) -> None:
        self._replay, self._turn, self._lead = replay, replay.turn, lead
        self._planner, self._synthesizer = planner, synthesizer
        self._plan = Plan(steps=())
        self._plans = 0
        """How often the planner was asked."""
        self._versions: dict[str, int] = {}
        """How often each step was delegated."""
        self._due: dict[str, list[dict[str, str]]] = {}
        """Steps to be delegated; for one that is done again, with its flaws."""
        self._reported: set[str] = set()
        """Failed tasks that the planner knows of."""
        self._seen: PromptContext

    async def run(self) -> Move:
        self._seen = await self._context()
        await self._extend([])
        if len(self._plan.steps) == 1:
            text = "the plan has a single step: this request needed no supervisor"
            await self._turn.execution.first("remark", text, name="one step")
        while True:
            await self._carry_out()
            flaws = await self._flaws()
            if self._revise(flaws):
                continue
            failed = [Flaw(name, _why(each)) for name, each in self._results.items() if not each.delivered]
            of_the_plan = [flaw for flaw in flaws if flaw.task not in self._results]
            of_the_plan += [flaw for flaw in failed if self._task_name(flaw.task) not in self._reported]
            self._reported |= {self._task_name(flaw.task) for flaw in failed}
            may_plan = of_the_plan and self._plans < self._lead.most_plans
            if not may_plan or not await self._extend(of_the_plan):
                return await self._answer([*flaws, *failed])

    async def _context(self) -> PromptContext:
        """Return the agents, and everything else in the prompts, as in the first round."""
        now = await self._turn.execution.first("context", context_now(self._turn), name=PLAN)
        return msgspec.convert(now, PromptContext)

    @property
    def _workers(self) -> tuple[AgentEntry, ...]:
        chosen, path = self._lead.workers, self._turn.path
        return tuple(
            peer
            for peer in self._seen.peers
            if peer.name not in path and (chosen is None or peer.name in chosen)
        )

    # --- what is done -----------------------------------------------------------------------------

    def _task_name(self, step: str) -> str:
        """Return the name of a step's newest task."""
        version = self._versions.get(step, 1)
        return step if version == 1 else f"{step}~{version}"

    @property
    def _results(self) -> dict[str, Result]:
        """The newest result of each step that has one, by step."""
        known = self._replay.results
        names = ((step.name, self._task_name(step.name)) for step in self._plan.steps)
        return {step: known[name] for step, name in names if step in self._versions and name in known}

    async def _carry_out(self) -> None:
        """Delegate each step as soon as the results that it needs exist, until no step is open or ready."""
        while True:
            results = self._results
            open_ = sum(name not in results for name in self._versions)
            done = {name for name, each in results.items() if each.delivered and name not in self._due}
            waiting = [step for step in self._plan.steps if step.name in self._due]
            able = [step for step in waiting if done.issuperset(step.needs)]
            ready = able[: max(0, self._lead.most_open - open_)]
            if not ready and not open_:
                return
            await self._delegate(ready, rest=len(waiting) > len(ready))

    async def _delegate(self, steps: list[PlanStep], *, rest: bool) -> None:
        """Delegate steps, and wait: for the first open one if more steps depend on them, else for all."""
        tasks = [self._task(step) for step in steps]
        past = await self._replay.make(self._turn.delegate(tasks, join="any" if rest else "all"))
        for step in steps:
            del self._due[step.name]
        if past.refusal is None:
            self._versions |= {step.name: self._versions.get(step.name, 0) + 1 for step in steps}
            return
        if not steps:
            self._lost()
            return
        refused = Flaw("", f"rule {past.refusal.rule} refused these tasks: {past.refusal.detail}")
        if self._plans >= self._lead.most_plans or not await self._extend([refused]):
            raise DelegateRefused(refused.what)

    def _lost(self) -> None:
        """Delegate again what is no longer open: a person resumed this turn after it had escalated."""
        for name in [name for name in self._versions if name not in self._results]:
            self._due[name] = []
            self._versions[name] -= 1
            if not self._versions[name]:
                del self._versions[name]

    def _task(self, step: PlanStep) -> Task:
        feedback = self._due[step.name]
        facts = [self._fact(each.key, each.value, each.labels) for each in step.facts]
        if feedback:
            facts.append(self._fact(FEEDBACK, feedback))
        revises = self._task_name(step.name) if step.name in self._versions else ""
        return self._turn.task(
            f"{step.name}~{self._versions[step.name] + 1}" if revises else step.name,
            summary=step.goal,
            to=step.agent,
            intent=step.intent,
            facts=facts,
            uses=(*map(self._task_name, step.needs), *((revises,) if revises else ())),
            revises=revises,
            fallback=self._lead.second_agent,
        )

    def _fact(self, key: str, value: Any, labels: tuple[str, ...] = ()) -> Fact:
        needed = self._lead.labels.get(key, ())
        return Fact(key=key, value=value, labels=tuple(sorted({*labels, *needed})))

    # --- what is wrong with it ----------------------------------------------------------------------

    async def _flaws(self) -> list[Flaw]:
        check, results = self._lead.check, self._results
        if check is None or not results:
            return []
        found = check(self._turn, results)
        return list(await found if isawaitable(found) else found)

    def _revise(self, flaws: list[Flaw]) -> bool:
        """Let flawed steps, and those that depend on them, be done again; return False if there are none."""
        for step in self._in_order():
            found = [{"what": each.what, "where": each.where} for each in flaws if each.task == step.name]
            if stale := [need for need in step.needs if need in self._due]:
                found.append({"what": f"done again: {', '.join(stale)}", "where": ""})
            may = step.name in self._results and self._versions[step.name] <= self._lead.most_revisions
            if found and may:
                self._due[step.name] = found
        return any(name in self._versions for name in self._due)

    def _in_order(self) -> list[PlanStep]:
        """Return the steps, each after those that it needs."""
        steps = {step.name: step for step in self._plan.steps}
        graph = {name: [need for need in step.needs if need in steps] for name, step in steps.items()}
        return [steps[name] for name in TopologicalSorter(graph).static_order()]

    # --- the planner --------------------------------------------------------------------------------

    async def _extend(self, flaws: list[Flaw]) -> bool:
        """Ask the planner for (more) steps, which replace those that were not begun.

        Returns False if it says that nothing more is to be done. Raises PlanInvalid.
        """
        lead, workers = self._lead, self._workers
        names = tuple(worker.name for worker in workers)
        if not names:
            raise PlanInvalid(f"{self._turn.agent} may delegate to nobody: the fleet file says so")
        form = plan_form(names, intents_of(workers))
        begun = [step for step in self._plan.steps if step.name in self._versions]

        def read(call: ToolCall) -> Plan:
            try:
                plan = form.model_validate(dict(call.arguments))
            except ValidationError as wrong:
                raise ToolArgumentsInvalid(PLAN, mistakes_in(wrong)) from wrong
            wrong_with = plan.mistakes(workers, [step.name for step in begun])
            if not plan.steps and not begun:
                wrong_with.append("there is no step")
            if wrong_with:
                raise ToolArgumentsInvalid(PLAN, tuple(wrong_with))
            return plan

        self._plans += 1
        planner = f"{self._turn.agent}-{PLANNER}"
        try:
            more = await ask(
                self._turn,
                self._planner,
                agent=planner,
                instructions=lead.plans_by,
                brief=self._brief(planner, flaws, "Found wrong:"),
                spec=ToolSpec(PLAN, _PLAN_WORDS, schema_of(form)),
                read=read,
                tries=lead.tries,
            )
        except NoAnswer as none:
            raise PlanInvalid(str(none)) from none
        self._plan = Plan(steps=(*begun, *more.steps))
        self._due = {step.name: [] for step in more.steps}
        return bool(more.steps)

    # --- the synthesizer ----------------------------------------------------------------------------

    async def _answer(self, open_: list[Flaw]) -> Move:
        """Return the synthesizer's answer; if the guard refuses it, another one."""
        lead = self._lead
        moves = MoveTools(
            self._turn, self._seen, lead.labels, output_type=lead.output_type, remembers=lead.remembers
        )
        name = DELIVER if self._turn.task_name else COMPLETE
        spec = next(spec for spec in moves.specs if spec.name == name)
        synthesizer, refused = f"{self._turn.agent}-{SYNTHESIZER}", list[Flaw]()
        while True:
            move = await ask(
                self._turn,
                self._synthesizer,
                agent=synthesizer,
                instructions=lead.answers_by,
                brief=self._brief(synthesizer, [*open_, *refused], "Not settled:"),
                spec=spec,
                read=moves.read,
                words=moves.answered if moves.words_answer else None,
                tries=lead.tries,
            )
            past = await self._replay.make(move)
            if past.refusal is not None:
                why = f"rule {past.refusal.rule} refused the answer: {past.refusal.detail}"
                refused.append(Flaw("", why))

    # --- what both are shown --------------------------------------------------------------------------

    def _brief(self, speaker: str, flaws: list[Flaw], title: str) -> str:
        """Return the turn, the plan, and what is known of it, as much as fits."""
        plan = [f"{step.line} [{self._state(step)}]" for step in self._plan.steps]
        blocks = [["Plan:", *plan]] if plan else []
        blocks += [[title, *(f"- {flaw}" for flaw in flaws)]] if flaws else []
        used = {need for step in self._plan.steps for need in step.needs}
        asked = {flaw.task for flaw in flaws}
        passages = []
        for name, result in self._results.items():
            shown = shown_result(result.told)
            whole = msgspec.json.encode(shown).decode()
            summary = f"({result.status}, {result.agent}) {one_line(result.summary or _why(result))}"
            passages.append(Passage(name, summary, whole, name not in used or name in asked))
        task = render(self._turn, self._seen, frozenset(worker.name for worker in self._workers), speaker)
        rest = "\n\n".join(map("\n".join, blocks))
        return self._lead.window.fit(task, rest, passages).text

    def _state(self, step: PlanStep) -> str:
        if step.name not in self._versions:
            return "not begun"
        result = self._results.get(step.name)
        return "open" if result is None else result.status


def _why(result: Result) -> str:
    if result.error is None:
        return "" if result.delivered else result.status
    return one_line(f"{result.status}: {result.error.code} {result.error.message}")
