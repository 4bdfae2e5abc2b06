"""What follows from plans: tasks open, joins close, and what is called off or left over ends."""

from collections.abc import Collection, Iterator
from typing import Any

from msgspec.structs import replace

from protocol.domain import budget
from protocol.domain.envelope import Draft, World, due_draft
from protocol.domain.ledger import Ledger
from protocol.domain.plans import task_work
from protocol.domain.tasks import TaskState, is_joined, opening_cause, result_of, untold
from protocol.domain.turns import TurnState, error_of, next_round
from protocol.wire import events
from protocol.wire.config import AgentEntry
from protocol.wire.event_parts import PlannedTask, RoundOutcome, TaskError, TaskResult
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Rule
from protocol.wire.ids import NOBODY


def doomed(ledger: Ledger) -> list[TaskState]:
    """Return the open tasks that are called off, or whose lead is over or doomed itself; deepest first."""
    found: list[TaskState] = []
    for task in ledger.live.values():  # a lead's task was planned before its own
        if task.called_off or _is_left_over(ledger, task, found):
            found.append(task)
    return sorted(found, key=lambda task: -task.level)


def _is_left_over(ledger: Ledger, task: TaskState, ending: list[TaskState]) -> bool:
    lead = ledger.turns[task.lead]
    return lead.state == "ended" or any(lead.task is one for one in ending)


def planned(ledger: Ledger) -> Iterator[TaskState]:
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
    return opening(draft, lead, plan, entry, id=task.turn)


def opening(draft: Draft, lead: TurnState, plan: PlannedTask, entry: AgentEntry, **said: Any) -> AnyEvent:
    """Return what opens the turn of a task for its agent, `entry`, with what that may see."""
    work = task_work(draft.ledger, lead, plan, entry.name, lead.entry)
    return draft.opening(
        events.TaskOpened,
        work.handoff,
        work.load,
        work.marks,
        path=(*lead.work.path, entry.name),
        reader=entry,
        results=given(lead, plan, entry.clearance),
        lead=lead.id,
        name=plan.task.name,
        **said,
    )


def given(lead: TurnState, plan: PlannedTask, clearance: Collection[str]) -> tuple[TaskResult, ...]:
    """Return the results that a task is given to use, as somebody with this clearance is told."""
    return tuple(result_of(lead.known_tasks[name], clearance) for name in plan.task.uses)


def never_opened(ledger: Ledger, world: World, task: TaskState, code: str, message: str) -> AnyEvent:
    """Return the failure of a task whose turn cannot be opened, or that nobody claimed."""
    path = ledger.turns[task.lead].work.path
    if task.worker is None:
        agent, lineage = task.addressee, path
    else:
        agent = task.worker.entry.name
        lineage = (*path, agent)
    error = TaskError(code=code, message=message, agent=agent, attempts=0, lineage=lineage)
    draft = due_draft(events.TaskFailed, ledger, world, task.turn, task.since_n)
    said = {"turn": task.turn, "round": 0, "name": task.name, "error": error, "grounds": world.grounds}
    return draft.event(events.TaskFailed, NOBODY, **said)


def failed(ledger: Ledger, world: World, turn: TurnState, code: str, message: str) -> AnyEvent:
    """Return the end of a task whose turn has no round left."""
    assert turn.task is not None
    said = {"turn": turn.id, "round": turn.round, "name": turn.task.name, "grounds": world.grounds}
    draft = due_draft(events.TaskFailed, ledger, world, turn.id, turn.since_n)
    return draft.event(events.TaskFailed, NOBODY, error=error_of(turn, code, message), **said)


def cancelled(ledger: Ledger, world: World, task: TaskState) -> AnyEvent:
    """Return the end of a task that is called off or left over."""
    turn = ledger.turns.get(task.turn)
    n = task.since_n if turn is None else turn.since_n
    draft = due_draft(events.TaskCancelled, ledger, world, task.turn, n)
    return draft.event(
        events.TaskCancelled,
        NOBODY,
        turn=task.turn,
        name=task.name,
        why="called_off" if task.called_off else "lead_ended",
        grounds=world.grounds,
    )


def resumed(ledger: Ledger, world: World, lead: TurnState) -> AnyEvent:
    """Return the next round of a lead, with the results that it was not told yet."""
    clearance = () if lead.entry is None else lead.entry.clearance
    results = tuple(result_of(task, clearance) for task in untold(lead.tasks.values()))
    work = next_round(lead, RoundOutcome(round=lead.round, how="joined"), results=results)
    draft = due_draft(events.TurnResumed, ledger, world, lead.id, lead.since_n)
    return draft.event(events.TurnResumed, lead.agent, turn=lead.id, work=work)
