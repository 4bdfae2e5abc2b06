"""Tasks: what a lead gave out, what each may spend, and when the lead runs again with which results.

Budgets of a tree are *accounts*. A task reserves its grant until it ends; what it did not use returns then.
A lead has left its own grant, less what it and its tasks have spent, less what its open tasks still reserve.
So no tree spends more than its root was given. A level without a limit has none below it either, unless a
task asks for one.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from protocol.domain import budget
from protocol.domain.carried import is_cleared
from protocol.wire.commands import Usage
from protocol.wire.config import AgentEntry
from protocol.wire.event_parts import Candidate, Grounds, PlannedTask, TaskResult, TaskStatus, Withheld
from protocol.wire.events import TaskCancelled, TaskDelivered, TaskFailed, TurnDelegated
from protocol.wire.handoff import Artifact, Budget, Fact
from protocol.wire.ids import AgentName, Cause, TurnId, due_cause, event_id
from protocol.wire.moves import Join
from protocol.wire.subjects import intent_inbox

OPENED, OFFERED = "task.opened", "task.offered"


class TaskState(msgspec.Struct, gc=False, kw_only=True):
    """One task of a lead, as the log tells it. After a fallback it goes on under another turn."""

    name: str
    planned: PlannedTask
    lead: TurnId
    level: int
    """Of the lineage: 2 for a task of the root."""
    grant: Budget
    since_n: int
    """Number of the event that its next turn follows from: the plan's, or the failure's before a fallback."""
    since: int
    """UTC µs of the plan."""
    turn: TurnId
    """Its newest turn, opened or not."""
    worker: Candidate | None
    """Who has it or gets it, as the guard found them; None for an offer."""
    state: TaskStatus | Literal["planned", "offered", "open"] = "planned"
    readers: tuple[AgentEntry, ...] = ()
    """Of an offered task: who reads its offers, as the fleet file had them at the plan."""
    offer: TurnId | None = None
    """Of an offered task: its newest offer."""
    offered_at: int = 0
    """UTC µs since when it can be claimed: its newest offer was made then, or made again."""
    asked: tuple[Candidate, ...] = ()
    """To whom its newest offer goes again, each in its own inbox; nobody until it was in vain once."""
    copies: dict[AgentName, int] = msgspec.field(default_factory=dict)
    """Of these: who got it, by the number of the event."""
    agents: tuple[AgentName, ...] = ()
    """All that had it, in order."""
    attempts: int = 0
    """Rounds that were begun, by all of them."""
    spent: Usage = budget.NOTHING
    """By all its turns and all below them."""
    fell_back: TurnId | None = None
    """Its turn, opened or not, after whose failure a guard gave it to another agent."""
    called_off: bool = False
    """True once its lead called it off."""
    told: bool = False
    """True once its lead was told of its end."""
    ended: TaskDelivered | TaskFailed | TaskCancelled | None = None
    """What ended it."""
    revision: int = 0
    """How many times the work was done before: 1 for a revision of a task that revises none."""
    revised: str = ""
    """Of a revision: the name of the task that was done first."""

    @property
    def is_open(self) -> bool:
        return self.state in ("planned", "offered", "open")

    @property
    def is_offered(self) -> bool:
        """Return True if it goes to whoever claims it."""
        return not self.planned.agent

    @property
    def addressee(self) -> AgentName:
        """Whom it was planned for: an agent, or the inbox of its intent."""
        return self.planned.agent or AgentName(intent_inbox(str(self.planned.task.intent)))

    @property
    def may_be_offered_again(self) -> bool:
        """Return True if it is offered once more when the turn of its claimant fails."""
        return self.is_offered and self.planned.task.fallback and not (self.fell_back or self.called_off)

    @property
    def claimants(self) -> Iterator[AgentName]:
        """Yield who reads its offers: as the fleet file had them at the plan, and when it went again."""
        yield from (entry.name for entry in self.readers)
        yield from (one.entry.name for one in self.asked)

    @property
    def next_asked(self) -> Candidate | None:
        """Return who is the next to get its offer again; None if that is nobody."""
        return next((one for one in self.asked if one.entry.name not in self.copies), None)

    def may_be_claimed(self, offer: TurnId) -> bool:
        """Return True if a claim of this offer is to be judged: it is the newest, and nobody has taken it."""
        return offer == self.offer and self.state == "offered" and not self.called_off

    @property
    def reserved(self) -> Usage:
        """What it may still spend, where that is a number."""
        return budget.whole(budget.left(self.grant, self.spent)) if self.is_open else budget.NOTHING

    @property
    def entry(self) -> AgentEntry | None:
        """Its agent, as the fleet file had it."""
        return None if self.worker is None else self.worker.entry


def opening_cause(request: str, lead: TurnId, n: int) -> Cause:
    """Return the cause that the turns of a plan's tasks have; `n` is the number of the event before them."""
    return due_cause(request, OPENED, lead, n)


def task_turn(request: str, lead: TurnId, n: int, place: int = 0) -> TurnId:
    """Return the turn of a plan's task by its place in the plan."""
    return TurnId(event_id(opening_cause(request, lead, n), OPENED, place))


def offering_cause(request: str, lead: TurnId, n: int) -> Cause:
    """Return the cause of the offers of a plan; `n` is the number of the event before them."""
    return due_cause(request, OFFERED, lead, n)


def offer_id(request: str, lead: TurnId, n: int, place: int = 0) -> TurnId:
    """Return the offer of a plan's task by its place in the plan."""
    return TurnId(event_id(offering_cause(request, lead, n), OFFERED, place))


def lists(agent: AgentEntry, intent: str | None) -> bool:
    """Return True if an agent reads the offers of an intent: only one that lists it does."""
    return intent is not None and intent in (agent.intents or ())


def begun(
    event: TurnDelegated, lead: TurnId, level: int, known: Mapping[TurnId, TaskState]
) -> list[TaskState]:
    """Return the tasks that a plan brings.

    Args:
        known: the request's earlier tasks by the turn that each was planned under. Raises KeyError if a
            task revises none of them, so no chain of revisions can be a circle.
    """
    found = {one.entry.name: one for one in event.grounds.candidates}
    tasks = []
    for planned in event.tasks:
        revision, revised = revision_of(planned, known)
        task = TaskState(
            name=planned.task.name,
            planned=planned,
            lead=lead,
            level=level,
            grant=planned.constraints.budget or budget.UNLIMITED,
            since_n=event.n,
            since=event.at,
            turn=planned.turn,
            worker=found.get(planned.agent),
            readers=()
            if planned.agent
            else tuple(one.entry for one in found.values() if lists(one.entry, planned.task.intent)),
            revision=revision,
            revised=revised,
        )
        tasks.append(task)
    return tasks


def revision_of(planned: PlannedTask, known: Mapping[TurnId, TaskState]) -> tuple[int, str]:
    """Return how often the work of a task was done before, and the name of the task that did it first."""
    if not planned.revises:
        return 0, ""
    earlier = known[planned.revises]
    return earlier.revision + 1, earlier.revised or earlier.name


def open_of(tasks: Iterable[TaskState]) -> tuple[TaskState, ...]:
    """Return those that are open, in the same order."""
    return tuple(task for task in tasks if task.is_open)


def busy_with(tasks: Iterable[TaskState], agent: str) -> TaskState | None:
    """Return the task of a lead that an agent has in hand; None if it has none.

    It may claim no other of that lead's meanwhile: so the reads are spread over those who can do them.
    """
    return next((task for task in tasks if task.state == "open" and task.agents[-1] == agent), None)


def unreported(tasks: Iterable[TaskState]) -> tuple[TaskState, ...]:
    """Return those that ended and whose lead was not told yet, in the same order."""
    return tuple(task for task in tasks if not task.is_open and not task.told)


def reserved(tasks: Iterable[TaskState]) -> Usage:
    """Return what the open ones of these tasks may still spend."""
    return budget.total(task.reserved for task in tasks)


def committed(tasks: Iterable[TaskState]) -> Usage:
    """Return what these tasks have spent, and what the open ones may still spend; not by which model."""
    tasks = tuple(tasks)
    return replace(budget.total((reserved(tasks), *(task.spent for task in tasks))), models={})


def is_joined(tasks: dict[str, TaskState], join: Join) -> bool:
    """Return True if a lead that waits for `join` runs again."""
    if not any(task.is_open for task in reversed(tasks.values())):  # the newest are the likeliest to be
        return True
    if join == "all":
        return False
    successes = sum(task.state == "delivered" for task in unreported(tasks.values()))
    return successes >= (1 if join == "any" else join)


def next_worker(
    task: TaskState, lineage: Collection[str], giver: AgentEntry | None, grounds: Grounds | None
) -> Candidate | None:
    """Return who gets a task that failed: the first candidate that may have it, if it falls back at all."""
    for one in () if grounds is None else grounds.candidates:
        if one.served and one.breaker != "open" and may_fall_back(task, one.entry, lineage, giver):
            return one
    return None


def may_fall_back(
    task: TaskState, agent: AgentEntry, lineage: Collection[str], giver: AgentEntry | None
) -> bool:
    """Return True if a guard may give a failed task to this agent: once, to one that did not have it."""
    asked, allowed = task.planned.task, None if giver is None else giver.to
    if task.is_offered or not asked.fallback or asked.intent is None or task.called_off or task.fell_back:
        return False
    had = {task.planned.agent, *task.agents}
    may_give = allowed is None or agent.name in allowed
    return may_give and agent.takes(asked.intent) and agent.name not in {*had, *lineage}


# --- results ----------------------------------------------------------------------------------------

MAX_JOIN_BYTES = 524_288
"""What the results that one event brings may come to, as JSON: half of what the bus takes of a message."""


def result_of(task: TaskState, clearance: Collection[str] | None = None) -> TaskResult:
    """Return what became of a task that ended, as somebody with this clearance (None: for all) is told."""
    end = task.ended
    assert end is not None
    assert task.state in ("delivered", "failed", "cancelled")
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    summary, withheld = "", None
    if isinstance(end, TaskDelivered):
        summary = end.summary
        facts = tuple(fact for fact in end.facts if clearance is None or is_cleared((fact,), clearance))
        artifacts = tuple(one for one in end.artifacts if clearance is None or is_cleared((one,), clearance))
        withheld = _withheld(end, facts, artifacts)
    return TaskResult(
        name=task.name,
        task=task.turn,
        status=task.state,
        agent=task.agents[-1] if task.agents else task.addressee,
        agents=task.agents if len(task.agents) > 1 else (),
        summary=summary,
        facts=facts,
        artifacts=artifacts,
        error=end.error if isinstance(end, TaskFailed) else None,
        withheld=withheld,
        cost=task.spent,
        attempts=task.attempts,
        duration_s=(end.at - task.since) / 1e6,
    )


def _withheld(
    end: TaskDelivered, facts: tuple[Fact, ...], artifacts: tuple[Artifact, ...]
) -> Withheld | None:
    hidden: list[Fact | Artifact] = [one for one in end.facts if one not in facts]
    hidden += [one for one in end.artifacts if one not in artifacts]
    if not hidden:
        return None
    return Withheld(
        labels=tuple(sorted({label for one in hidden for label in one.labels})),
        facts=len(end.facts) - len(facts),
        artifacts=len(end.artifacts) - len(artifacts),
    )


def size_of(task: TaskState) -> int:
    """Return how many bytes the whole result of a task comes to, as JSON."""
    return len(msgspec.json.encode(result_of(task)))
