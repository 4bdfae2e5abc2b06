"""Plans: which agent gets each task, with what work and budget, and the events that follow.

Nothing here refuses. What a plan cannot have stays empty, and then the rules refuse the plan. Once a plan is
admitted, its tasks are opened, joins complete, and tasks that were cancelled or orphaned end.
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
"""The topology in which tasks without an agent are offered, and all tasks are read-only."""


class TaskWork(NamedTuple):
    """What a task gets to work with."""

    handoff: Handoff
    """The whole handoff, with nothing withheld."""
    known: Handoff
    """The same, as its lead knows it."""
    before: Carried
    """What the lead carries."""
    carried: Carried
    """What the task carries."""


class PlannedWork:
    """One task of a plan, as it would be admitted.

    Args:
        worker: the agent that would get it; None if there is none.
        carry: computes what it would carry. That is slow, and not done for a plan refused for its many tasks.
    """

    def __init__(
        self, task: Task, worker: Candidate | None, planned: PlannedTask, carry: Callable[[], TaskWork]
    ) -> None:
        self.task, self.worker, self.planned, self._carry = task, worker, planned, carry

    @functools.cached_property
    def work(self) -> TaskWork:
        """What the task would get to work with."""
        return self._carry()


def candidates_of(
    move: Delegate, fleet: Fleet, sender: AgentEntry | None, topology: str
) -> tuple[AgentName, ...]:
    """Return the agents that a plan's tasks could go to, in fleet order.

    If no agent takes an intent, these are all agents, so that the refusal can name what there is. In a swarm,
    these are all agents that list one of the intents, since each of them reads the offer.
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
    """Yield agents that take any of these intents and may get work from `sender`, and those in `named`."""
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
    """Return the agents that could get a task next if it fails now, in fleet order."""
    return tuple(
        agent.name for agent in fleet.agents.values() if may_fall_back(task, agent, lead.path, lead.entry)
    )


def planned(
    ledger: Ledger, turn: TurnState, move: Delegate, grounds: Grounds, now: int, rest: Budget
) -> tuple[PlannedWork, ...]:
    """Return a plan as it would be admitted now.

    Args:
        rest: what the lead has left once the round's spending is settled.
    """
    own = turn.frame.constraints
    parts = shares([task.constraints.budget for task in move.tasks], rest, ledger.policy.keep_back)
    found, swarm, known = list[PlannedWork](), ledger.policy.topology == SWARM, turn.known_tasks
    for place, (task, part) in enumerate(zip(move.tasks, parts, strict=True)):
        is_offered = swarm and task.to_agent is None
        worker, why = (None, "") if is_offered else chosen(task, turn, grounds)
        agent = AgentName(task.to_agent or "") if worker is None else worker.entry.name
        constraints = narrower(own, task.constraints, now, part, read_only=swarm)
        make_id = offer_id if is_offered else task_turn
        plan = PlannedTask(
            task=task,
            turn=make_id(str(ledger.request), turn.id, ledger.n, place),
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

    A task gets what it asks for. The others split the remainder equally, after the part that is kept for the
    lead. This is done for each dimension. Where the lead has no limit, only tasks that ask for one get one.
    """
    granted: list[dict[str, int | None]] = [{} for _ in asked]
    for name in Budget.__struct_fields__:
        wanted = [None if each is None else getattr(each, name) for each in asked]
        have, part = getattr(rest, name), None
        if have is not None and None in wanted:
            free = have - kept_back(have, keep_back) - sum(each for each in wanted if each is not None)
            part = max(0, free // wanted.count(None))
        for grant, own in zip(granted, wanted, strict=True):
            grant[name] = part if own is None else own
    return [Budget(**grant) for grant in granted]


def kept_back(have: int, keep_back: float) -> int:
    """Return the amount of one dimension that is reserved for the lead's own answer."""
    return int(max(have, 0) * keep_back)


def narrower(
    own: Constraints, asked: Constraints, now: int, granted: Budget, *, read_only: bool = False
) -> Constraints:
    """Return the constraints of the receiver: the giver's, narrowed by what is asked for."""
    deadline, actions = asked.ends_at(now), asked.allowed_actions
    return Constraints(
        deadline=own.deadline if deadline is None else deadline,  # a rule ensures that it is not later
        allowed_actions=own.allowed_actions if actions is None else tuple(sorted(actions)),
        budget=budget.public(granted),
        must_carry=tuple(sorted({*own.must_carry, *asked.must_carry})),
        read_only=read_only or own.read_only or asked.read_only,
    )


def claimants(task: Task, lead: TurnState, grounds: Grounds) -> list[AgentName]:
    """Return the agents that could claim an offered task."""
    return [
        each.entry.name
        for each in grounds.candidates
        if lists(each.entry, task.intent) and may_give(grounds, each) and each.entry.name not in lead.path
    ]


# --- who gets it ------------------------------------------------------------------------------------


def chosen(task: Task, lead: TurnState, grounds: Grounds) -> tuple[Candidate | None, str]:
    """Return the agent that gets a task, and the reason if the guard had to choose.

    It is the first in fleet order that takes the intent, is served, is not in the lineage, and has a breaker
    that admits work. If no agent meets all of these, one outside the lineage gets it. Then the task may fail,
    but the plan is not refused.
    """
    if task.to_agent is not None:
        return next((each for each in grounds.candidates if each.entry.name == task.to_agent), None), ""
    if task.intent is None:
        return None, ""
    takers = [
        each for each in grounds.candidates if each.entry.takes(task.intent) and may_give(grounds, each)
    ]
    outside = [each for each in takers if each.entry.name not in lead.path]
    free = [each for each in outside if each.breaker != "open"]
    best = [each for each in free if each.served] or free or outside
    if not best:
        return None, ""
    over = [f"{each.entry.name} ({_against(each, lead)})" for each in takers[: takers.index(best[0])]]
    passed_over = f", after {', '.join(over)}" if over else ""
    return best[0], f"the first in the fleet that takes {task.intent!r}{passed_over}"


def may_give(grounds: Grounds, candidate: Candidate) -> bool:
    """Return True if the proposer may give this agent work."""
    sender = grounds.sender
    return sender is None or sender.to is None or candidate.entry.name in sender.to


def _against(candidate: Candidate, lead: TurnState) -> str:
    if candidate.entry.name in lead.path:
        return "in the lineage"
    return "its breaker is open" if candidate.breaker == "open" else "nobody serves it"


# --- what it gets -----------------------------------------------------------------------------------


def task_work(ledger: Ledger, lead: TurnState, plan: PlannedTask, agent: AgentName) -> TaskWork:
    """Return what a task works with: the part of its lead's facts that it carries, and what the plan adds.

    A lead can only leave out what it sees. What is withheld from it is carried along, as with a transfer.
    """
    task = plan.task
    before = kept = lead.carried()
    if task.carry is not None:
        added = (*(fact.key for fact in task.facts), *(item.name for item in task.artifacts))
        hidden = lead.hidden
        kept = narrowed(before, {*task.carry, *added, *hidden.facts, *hidden.artifacts})
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
    """Return a handoff as its giver knows it, without a trace of what is withheld from the giver.

    Args:
        handoff: the whole handoff.
        facts: facts that the giver adds; likewise `artifacts`.
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
    """Return open tasks that were cancelled, or whose lead is over or to be cancelled; deepest first."""
    found: list[TaskState] = []
    for task in ledger.live.values():  # a lead's task was planned before its own
        if task.called_off or _is_left_over(ledger, task, found):
            found.append(task)
    return sorted(found, key=lambda task: -task.level)


def _is_left_over(ledger: Ledger, task: TaskState, ending: list[TaskState]) -> bool:
    lead = ledger.turns[task.lead]
    return lead.state == "ended" or any(lead.task is task for task in ending)


def unopened(ledger: Ledger) -> Iterator[TaskState]:
    """Yield the tasks that have no turn yet."""
    return (task for task in ledger.live.values() if task.state == "planned")


def joined(ledger: Ledger) -> Iterator[TurnState]:
    """Yield the leads whose join is complete."""
    return (
        turn
        for turn in ledger.open.values()
        if turn.state == "delegated" and is_joined(turn.tasks, turn.join)
    )


def opened(ledger: Ledger, world: World, task: TaskState) -> AnyEvent:
    """Return the event that opens a task's turn, or ends the task if its agent's breaker is open."""
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
    """Return the event that opens a task's turn for the agent `entry`, with what that agent may see."""
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
    """Return the results that a task gets to use, as a reader with this clearance may see them."""
    return tuple(result_of(ledger.tasks[turn], clearance) for turn in plan.uses)


def never_opened(ledger: Ledger, world: World, task: TaskState, code: str, message: str) -> AnyEvent:
    """Return the failure of a task whose turn cannot be opened, or that was not claimed."""
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
    """Return the end of a task that was cancelled or whose lead is over."""
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
    """Return the next round of a lead, with the results that it has not got yet.

    The lead sees what the current fleet allows: it is the target in `world`.
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
