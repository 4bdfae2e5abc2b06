"""Plans: who gets each task, with what, and how much it may spend; and the events that follow.

Nothing here refuses. A plan leaves empty what it cannot have, and the rules refuse it for that. Once a plan
is admitted, its tasks open, joins close, and tasks that were cancelled or left over end.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from protocol.domain import budget
from protocol.domain.carried import Carried, merge, narrowed
from protocol.domain.envelope import Draft, World, due_draft
from protocol.domain.ledger import Ledger
from protocol.domain.tasks import (
    TaskState,
    is_joined,
    lists,
    may_fall_back,
    offer_id,
    opening_cause,
    result_of,
    task_turn,
    unreported,
)
from protocol.domain.turns import TurnState, error_of, next_round
from protocol.wire import events
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.event_parts import Candidate, Grounds, PlannedTask, RoundOutcome, TaskError, TaskResult
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Artifact, Budget, Constraints, Fact, Handoff, Rule
from protocol.wire.ids import NOBODY, AgentName, TurnId
from protocol.wire.moves import Delegate, Task

SWARM = "swarm"
"""The topology in which a task without an agent is offered, and every task may only read."""


class TaskWork(NamedTuple):
    """What a task gets to work with."""

    handoff: Handoff
    """The whole, nothing withheld."""
    known: Handoff
    """The same as its lead knows it."""
    before: Carried
    """What the lead carries."""
    carried: Carried
    """What the task would carry."""


class PlannedWork:
    """One task of a plan, as it would be admitted.

    Args:
        worker: the agent that would get it; None where there is none.
        carry: works out what it would carry, which takes long. A plan of too many tasks is refused before.
    """

    def __init__(
        self, task: Task, worker: Candidate | None, planned: PlannedTask, carry: Callable[[], TaskWork]
    ) -> None:
        self.task, self.worker, self.planned, self._carry = task, worker, planned, carry

    @functools.cached_property
    def work(self) -> TaskWork:
        """What it would get to work with."""
        return self._carry()


def candidates_of(
    move: Delegate, fleet: Fleet, sender: AgentEntry | None, topology: str
) -> tuple[AgentName, ...]:
    """Return the agents that a plan's tasks could go to, in the fleet's order.

    Where nobody takes an intent it is all agents: the refusal names what there is. Of a swarm it is all that
    list one of the intents: each of them reads the offer.
    """
    named = {task.to_agent for task in move.tasks}
    if topology == SWARM:
        offered = {task.intent for task in move.tasks if task.to_agent is None}
        readers = {
            name for name, agent in fleet.agents.items() if any(lists(agent, intent) for intent in offered)
        }
        unread = any(not any(lists(agent, intent) for agent in fleet.agents.values()) for intent in offered)
        return tuple(
            agent.name for name, agent in fleet.agents.items() if unread or name in readers or name in named
        )
    intents = {task.intent for task in move.tasks if task.to_agent is None or task.fallback} - {None}
    return tuple(capable_of(intents, fleet, sender, named))


def capable_of(
    intents: Collection[str | None],
    fleet: Fleet,
    sender: AgentEntry | None,
    named: Collection[str | None] = (),
) -> Iterator[AgentName]:
    """Yield who takes any of some intents and may be given work by `sender`, and who is named."""
    allowed = fleet.agents if sender is None or sender.to is None else sender.to
    taken = {
        intent
        for intent in intents
        if any(agent.takes(intent) for name, agent in fleet.agents.items() if name in allowed)
    }
    lacking = len(taken) < len(intents)
    for name, agent in fleet.agents.items():
        capable = name in allowed and any(agent.takes(intent) for intent in intents)
        if lacking or capable or name in named:
            yield agent.name


def fallbacks(task: TaskState, lead: TurnState, fleet: Fleet) -> tuple[AgentName, ...]:
    """Return who could have a task next if it fails now, in the fleet's order."""
    return tuple(
        agent.name for agent in fleet.agents.values() if may_fall_back(task, agent, lead.path, lead.entry)
    )


def planned(
    ledger: Ledger, turn: TurnState, move: Delegate, grounds: Grounds, now: int, rest: Budget
) -> tuple[PlannedWork, ...]:
    """Return a plan as it would be admitted now.

    Args:
        rest: what the lead has left once it is settled.
    """
    own = turn.frame.constraints
    parts = shares([task.constraints.budget for task in move.tasks], rest, ledger.policy.keep_back)
    found, swarm, known = list[PlannedWork](), ledger.policy.topology == SWARM, turn.known_tasks
    for place, (task, part) in enumerate(zip(move.tasks, parts, strict=True)):
        is_offered = swarm and task.to_agent is None
        worker, why = (None, "") if is_offered else chosen(task, turn, grounds)
        agent = AgentName(task.to_agent or "") if worker is None else worker.entry.name
        constraints = narrower(own, task.constraints, now, part, read_only=swarm)
        of = offer_id if is_offered else task_turn
        plan = PlannedTask(
            task=task,
            turn=of(str(ledger.request), turn.id, ledger.n, place),
            agent=agent,
            why=why,
            constraints=constraints,
            uses=tuple(known[name].planned.turn for name in task.uses if name in known),
            revises=known[task.revises].planned.turn if task.revises in known else TurnId(""),
        )
        carry = functools.partial(task_work, ledger, turn, plan, agent)
        found.append(PlannedWork(task, worker, plan, carry))
    return tuple(found)


def shares(asked: Sequence[Budget | None], rest: Budget, keep_back: float) -> list[Budget]:
    """Return what each task of a plan would be granted out of what its lead has left.

    A task gets what it asks for. The others get equal parts of what is left then, less the part of the
    whole that is kept back for the lead. By dimension; one without a limit is nobody's but who asks for it.
    """
    granted: list[dict[str, int | None]] = [{} for _ in asked]
    for name in Budget.__struct_fields__:
        said = [None if one is None else getattr(one, name) for one in asked]
        have, part = getattr(rest, name), None
        if have is not None and None in said:
            free = have - kept_back(have, keep_back) - sum(one for one in said if one is not None)
            part = max(0, free // said.count(None))
        for grant, own in zip(granted, said, strict=True):
            grant[name] = part if own is None else own
    return [Budget(**grant) for grant in granted]


def kept_back(have: int, keep_back: float) -> int:
    """Return what of one dimension no task may have: it is for the lead's own answer."""
    return int(max(have, 0) * keep_back)


def narrower(
    own: Constraints, asked: Constraints, now: int, granted: Budget, *, read_only: bool = False
) -> Constraints:
    """Return the constraints of who is given work: its giver's, narrowed by what is asked for."""
    deadline, actions = asked.ends_at(now), asked.allowed_actions
    return Constraints(
        deadline=own.deadline if deadline is None else deadline,  # never later, by a rule
        allowed_actions=own.allowed_actions if actions is None else tuple(sorted(actions)),
        budget=budget.public(granted),
        must_carry=tuple(sorted({*own.must_carry, *asked.must_carry})),
        read_only=read_only or own.read_only or asked.read_only,
    )


def claimants(task: Task, lead: TurnState, grounds: Grounds) -> list[AgentName]:
    """Return who could claim a task that is offered."""
    return [
        one.entry.name
        for one in grounds.candidates
        if lists(one.entry, task.intent) and may_give(grounds, one) and one.entry.name not in lead.path
    ]


# --- who gets it ------------------------------------------------------------------------------------


def chosen(task: Task, lead: TurnState, grounds: Grounds) -> tuple[Candidate | None, str]:
    """Return who gets a task, and why where the guard had to choose.

    It is the first in the fleet's order that takes the intent, is served, is not in the lineage, and has a
    breaker that lets work through. If none has all of these, one outside the lineage gets it. A failure is
    then the task's, not the plan's.
    """
    if task.to_agent is not None:
        return next((one for one in grounds.candidates if one.entry.name == task.to_agent), None), ""
    if task.intent is None:
        return None, ""
    takers = [one for one in grounds.candidates if one.entry.takes(task.intent) and may_give(grounds, one)]
    outside = [one for one in takers if one.entry.name not in lead.path]
    free = [one for one in outside if one.breaker != "open"]
    best = [one for one in free if one.served] or free or outside
    if not best:
        return None, ""
    over = [f"{one.entry.name} ({_against(one, lead)})" for one in takers[: takers.index(best[0])]]
    passed_over = f", after {', '.join(over)}" if over else ""
    return best[0], f"the first in the fleet that takes {task.intent!r}{passed_over}"


def may_give(grounds: Grounds, one: Candidate) -> bool:
    """Return True if the proposer may give this agent work."""
    sender = grounds.sender
    return sender is None or sender.to is None or one.entry.name in sender.to


def _against(one: Candidate, lead: TurnState) -> str:
    if one.entry.name in lead.path:
        return "in the lineage"
    return "its breaker is open" if one.breaker == "open" else "nobody serves it"


# --- what it gets -----------------------------------------------------------------------------------


def task_work(ledger: Ledger, lead: TurnState, plan: PlannedTask, agent: AgentName) -> TaskWork:
    """Return what a task works with: what the plan carries of its lead's facts, and what it brings.

    A lead leaves out what it sees. What is withheld from it goes along, as it does with a transfer.
    """
    task = plan.task
    before = kept = lead.carried()
    if task.carry is not None:
        brought = (*(fact.key for fact in task.facts), *(item.name for item in task.artifacts))
        hidden = lead.hidden
        kept = narrowed(before, {*task.carry, *brought, *hidden.facts, *hidden.artifacts})
    carried = merge(kept, task.facts, task.artifacts, labels=ledger.history.labels)
    handoff = Handoff(
        move="delegate",
        from_agent=lead.agent,
        to_agent=agent,
        parent=lead.id,
        summary=task.summary,
        intent=task.intent,
        facts=carried.fact_tuple,
        artifacts=carried.artifact_tuple,
        constraints=plan.constraints,
    )
    known = known_to_giver(handoff, lead, task.facts, task.artifacts)
    return TaskWork(handoff, known, before, carried)


def known_to_giver(
    handoff: Handoff, giver: TurnState, facts: Collection[Fact], artifacts: Collection[Artifact]
) -> Handoff:
    """Return a handoff as its giver knows it, without a trace of what is withheld from them.

    Args:
        handoff: the whole.
        facts: those that the giver brings; of `artifacts` likewise.
    """
    hidden = giver.hidden
    if not (hidden.facts or hidden.artifacts):
        return handoff
    unseen = hidden.facts.keys() - {fact.key for fact in facts}
    unnamed = hidden.artifacts.keys() - {item.name for item in artifacts}
    return replace(
        handoff,
        facts=tuple(fact for fact in handoff.facts if fact.key not in unseen),
        artifacts=tuple(item for item in handoff.artifacts if item.name not in unnamed),
    )


# --- what follows from plans ------------------------------------------------------------------------


def to_cancel(ledger: Ledger) -> list[TaskState]:
    """Return the open tasks that are called off, or whose lead is over or to be cancelled; deepest first."""
    found: list[TaskState] = []
    for task in ledger.live.values():  # a lead's task was planned before its own
        if task.called_off or _is_left_over(ledger, task, found):
            found.append(task)
    return sorted(found, key=lambda task: -task.level)


def _is_left_over(ledger: Ledger, task: TaskState, ending: list[TaskState]) -> bool:
    lead = ledger.turns[task.lead]
    return lead.state == "ended" or any(lead.task is one for one in ending)


def unopened(ledger: Ledger) -> Iterator[TaskState]:
    """Yield the tasks that no turn was opened for yet."""
    return (task for task in ledger.live.values() if task.state == "planned")


def joined(ledger: Ledger) -> Iterator[TurnState]:
    """Yield the leads whose join is closed."""
    return (
        turn
        for turn in ledger.open.values()
        if turn.state == "delegated" and is_joined(turn.tasks, turn.join)
    )


def opened(ledger: Ledger, world: World, task: TaskState) -> AnyEvent:
    """Return what opens a task's turn, or ends it where its agent's breaker lets no work through."""
    lead, worker = ledger.turns[task.lead], task.worker
    assert worker is not None
    if worker.breaker == "open":
        message = f"{worker.entry.name} has failed too often of late; its breaker is open"
        return never_opened(ledger, world, task, Rule.AGENT_AVAILABLE, message)
    entry, left = worker.entry, budget.left(task.grant, task.spent)
    plan = replace(task.planned, constraints=replace(task.planned.constraints, budget=budget.public(left)))
    draft = Draft(ledger, world, opening_cause(str(ledger.request), lead.id, task.since_n))
    return opening(draft, lead, plan, entry, turn=task.turn)


def opening(
    draft: Draft,
    lead: TurnState,
    plan: PlannedTask,
    entry: AgentEntry,
    *,
    turn: TurnId | None = None,
    grounds: Grounds | None = None,
) -> AnyEvent:
    """Return what opens the turn of a task for its agent, `entry`, with what that may see."""
    work = task_work(draft.ledger, lead, plan, entry.name)
    opened = draft.opening(
        events.TaskOpened,
        work.handoff,
        work.carried,
        path=(*lead.path, entry.name),
        reader=entry,
        results=given(draft.ledger, plan, entry.clearance),
        task=plan.task.name,
        turn=turn,
    )
    if isinstance(opened, events.FactsWithheld):
        return opened
    return events.TaskOpened(
        **opened.envelope, work=opened.work, lead=lead.id, name=plan.task.name, grounds=grounds
    )


def given(ledger: Ledger, plan: PlannedTask, clearance: Collection[str]) -> tuple[TaskResult, ...]:
    """Return the results that a task is given to use, as a reader with this clearance may see them."""
    return tuple(result_of(ledger.tasks[turn], clearance) for turn in plan.uses)


def never_opened(ledger: Ledger, world: World, task: TaskState, code: str, message: str) -> AnyEvent:
    """Return the failure of a task whose turn cannot be opened, or that nobody claimed."""
    path = ledger.turns[task.lead].path
    if task.worker is None:
        agent, lineage = task.addressee, path
    else:
        agent = task.worker.entry.name
        lineage = (*path, agent)
    error = TaskError(code=code, message=message, agent=agent, attempts=0, lineage=lineage)
    draft = due_draft(events.TaskFailed, ledger, world, task.turn, task.since_n)
    return events.TaskFailed(
        **draft.envelope(events.TaskFailed, NOBODY),
        turn=task.turn,
        round=0,
        name=task.name,
        error=error,
        grounds=world.grounds,
    )


def failed(ledger: Ledger, world: World, turn: TurnState, code: str, message: str) -> AnyEvent:
    """Return the end of a task whose turn has no round left."""
    assert turn.task is not None
    draft = due_draft(events.TaskFailed, ledger, world, turn.id, turn.since_n)
    return events.TaskFailed(
        **draft.envelope(events.TaskFailed, NOBODY),
        turn=turn.id,
        round=turn.round,
        name=turn.task.name,
        error=error_of(turn, code, message),
        grounds=world.grounds,
    )


def cancelled(ledger: Ledger, world: World, task: TaskState) -> AnyEvent:
    """Return the end of a task that is called off or left over."""
    turn = ledger.turns.get(task.turn)
    n = task.since_n if turn is None else turn.since_n
    draft = due_draft(events.TaskCancelled, ledger, world, task.turn, n)
    return events.TaskCancelled(
        **draft.envelope(events.TaskCancelled, NOBODY),
        turn=task.turn,
        name=task.name,
        why="called_off" if task.called_off else "lead_ended",
        grounds=world.grounds,
    )


def resumed(ledger: Ledger, world: World, lead: TurnState) -> AnyEvent:
    """Return the next round of a lead, with the results that it was not told yet.

    It is shown what the fleet lets it see now: `world` has it as the target.
    """
    entry = world.grounds.target
    clearance = () if entry is None else entry.clearance
    results = tuple(result_of(task, clearance) for task in unreported(lead.tasks.values()))
    work = next_round(lead, RoundOutcome(round=lead.round, how="joined"), results=results)
    if lead.board:
        work = replace(work, board=ledger.board_for(clearance))
    draft = due_draft(events.TurnResumed, ledger, world, lead.id, lead.since_n)
    envelope = draft.envelope(events.TurnResumed, lead.agent)
    return events.TurnResumed(**envelope, turn=lead.id, work=work, grounds=world.grounds)
