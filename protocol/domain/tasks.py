"""Tasks: what a lead gave out, what each task may spend, and when the lead runs again with which results.

Budgets of a tree are *accounts*. A task reserves its grant until it ends; the unused part is returned then.
What a lead has left is its own grant, minus what it and its tasks have spent, minus what its open tasks
reserve. So a tree never spends more than its root was given. A level without a limit has none below it
either, unless a task asks for one.
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
    """One task of a lead, as folded from the log. After a fallback it continues under another turn."""

    name: str
    planned: PlannedTask
    lead: TurnId
    level: int
    """Level in the lineage: 2 for a task of the root."""
    grant: Budget
    since_n: int
    """Number of the event that leads to its next turn: the plan, or the failure before a fallback."""
    since: int
    """UTC µs of the plan."""
    turn: TurnId
    """Its newest turn, opened or not yet."""
    worker: Candidate | None
    """The agent that has it or will get it, as the guard found it; None for an offer."""
    state: TaskStatus | Literal["planned", "offered", "open"] = "planned"
    readers: tuple[AgentEntry, ...] = ()
    """Offered tasks: the readers of its offers, as the fleet listed them at the time of the plan."""
    offer: TurnId | None = None
    """Offered tasks: the newest offer."""
    offered_at: int = 0
    """UTC µs since when it can be claimed: when its newest offer was made or repeated."""
    asked: tuple[Candidate, ...] = ()
    """Agents whose own inboxes get the newest offer again; empty until it expired unclaimed once."""
    copies: dict[AgentName, int] = msgspec.field(default_factory=dict)
    """Those that got it already, each with the number of the event."""
    agents: tuple[AgentName, ...] = ()
    """All agents that have held it, in order."""
    attempts: int = 0
    """Rounds that all of them began."""
    spent: Usage = budget.NOTHING
    """Spending of all its turns and everything below them."""
    fell_back: TurnId | None = None
    """The turn (opened or not) after whose failure a guard gave it to another agent."""
    called_off: bool = False
    """True once its lead has cancelled it."""
    reported: bool = False
    """True once its lead has got its result."""
    ended: TaskDelivered | TaskFailed | TaskCancelled | None = None
    """The event that ended it."""
    revision: int = 0
    """How many times the work was done before: 1 for the first revision."""
    revised: str = ""
    """Revisions: the name of the original task."""

    @property
    def is_open(self) -> bool:
        return self.state in ("planned", "offered", "open")

    @property
    def is_offered(self) -> bool:
        """True if it goes to the agent that claims it."""
        return not self.planned.agent

    @property
    def addressee(self) -> AgentName:
        """Where the plan sends it: to an agent, or to the inbox of its intent."""
        return self.planned.agent or AgentName(intent_inbox(str(self.planned.task.intent)))

    @property
    def may_be_offered_again(self) -> bool:
        """True if it is offered once more when its claimant's turn fails."""
        return self.is_offered and self.planned.task.fallback and not (self.fell_back or self.called_off)

    @property
    def claimants(self) -> Iterator[AgentName]:
        """Yield the readers of its offers, as of the plan and as of when the offer was repeated."""
        yield from (entry.name for entry in self.readers)
        yield from (candidate.entry.name for candidate in self.asked)

    @property
    def next_asked(self) -> Candidate | None:
        """The next agent to get the offer again; None if there is none."""
        return next((each for each in self.asked if each.entry.name not in self.copies), None)

    def may_be_claimed(self, offer: TurnId) -> bool:
        """Return True if this offer can be claimed: it is the newest and still unclaimed."""
        return offer == self.offer and self.state == "offered" and not self.called_off

    @property
    def reserved(self) -> Usage:
        """What it may still spend, in limited dimensions."""
        return budget.whole(budget.left(self.grant, self.spent)) if self.is_open else budget.NOTHING

    @property
    def entry(self) -> AgentEntry | None:
        """Its agent's entry in the fleet."""
        return None if self.worker is None else self.worker.entry


def opening_cause(request: str, lead: TurnId, n: int) -> Cause:
    """Return the cause of the events that open a plan's tasks; `n` is the number of the plan's event."""
    return due_cause(request, OPENED, lead, n)


def task_turn(request: str, lead: TurnId, n: int, place: int = 0) -> TurnId:
    """Return the id of the turn of a plan's task, by its place in the plan."""
    return TurnId(event_id(opening_cause(request, lead, n), OPENED, place))


def offering_cause(request: str, lead: TurnId, n: int) -> Cause:
    """Return the cause of a plan's offers; `n` is the number of the plan's event."""
    return due_cause(request, OFFERED, lead, n)


def offer_id(request: str, lead: TurnId, n: int, place: int = 0) -> TurnId:
    """Return the id of the offer of a plan's task, by its place in the plan."""
    return TurnId(event_id(offering_cause(request, lead, n), OFFERED, place))


def lists(agent: AgentEntry, intent: str | None) -> bool:
    """Return True if an agent reads the offers of an intent, which it must list explicitly."""
    return intent is not None and intent in (agent.intents or ())


def begun(
    event: TurnDelegated, lead: TurnId, level: int, known: Mapping[TurnId, TaskState]
) -> list[TaskState]:
    """Return the tasks that a plan opens.

    Args:
        known: the request's earlier tasks, by the turn that their plan gave them. Raises KeyError if a task
            revises one that is not among them, so chains of revisions cannot be circular.
    """
    found = {candidate.entry.name: candidate for candidate in event.grounds.candidates}
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
            else tuple(each.entry for each in found.values() if lists(each.entry, planned.task.intent)),
            revision=revision,
            revised=revised,
        )
        tasks.append(task)
    return tasks


def revision_of(planned: PlannedTask, known: Mapping[TurnId, TaskState]) -> tuple[int, str]:
    """Return how often a task's work was done before, and the name of the original task."""
    if not planned.revises:
        return 0, ""
    earlier = known[planned.revises]
    return earlier.revision + 1, earlier.revised or earlier.name


def open_of(tasks: Iterable[TaskState]) -> tuple[TaskState, ...]:
    """Return the open tasks, in the same order."""
    return tuple(task for task in tasks if task.is_open)


def busy_with(tasks: Iterable[TaskState], agent: str) -> TaskState | None:
    """Return the task among a lead's tasks that an agent is working on; None if there is none.

    Until that ends, the agent may not claim another task of the lead, so the work is spread over all agents.
    """
    return next((task for task in tasks if task.state == "open" and task.agents[-1] == agent), None)


def unreported(tasks: Iterable[TaskState]) -> tuple[TaskState, ...]:
    """Return the ended tasks whose results their lead has not got yet, in the same order."""
    return tuple(task for task in tasks if not task.is_open and not task.reported)


def reserved(tasks: Iterable[TaskState]) -> Usage:
    """Return what the open tasks among these may still spend."""
    return budget.total(task.reserved for task in tasks)


def committed(tasks: Iterable[TaskState]) -> Usage:
    """Return what these tasks have spent, plus what the open ones may still spend; not split by model."""
    tasks = tuple(tasks)
    return replace(budget.total((reserved(tasks), *(task.spent for task in tasks))), models={})


def is_joined(tasks: dict[str, TaskState], join: Join) -> bool:
    """Return True if a lead that waits for `join` should run again."""
    if not any(task.is_open for task in reversed(tasks.values())):  # the newest are most likely to be open
        return True
    if join == "all":
        return False
    successes = sum(task.state == "delivered" for task in unreported(tasks.values()))
    return successes >= (1 if join == "any" else join)


def next_worker(
    task: TaskState, lineage: Collection[str], giver: AgentEntry | None, grounds: Grounds | None
) -> Candidate | None:
    """Return the first candidate that may take over a failed task; None if there is none or no fallback."""
    for each in () if grounds is None else grounds.candidates:
        if each.served and each.breaker != "open" and may_fall_back(task, each.entry, lineage, giver):
            return each
    return None


def may_fall_back(
    task: TaskState, agent: AgentEntry, lineage: Collection[str], giver: AgentEntry | None
) -> bool:
    """Return True if a guard may give a failed task to this agent: only once, and to a new agent."""
    asked, allowed = task.planned.task, None if giver is None else giver.to
    if task.is_offered or not asked.fallback or asked.intent is None or task.called_off or task.fell_back:
        return False
    had = {task.planned.agent, *task.agents}
    may_give = allowed is None or agent.name in allowed
    return may_give and agent.takes(asked.intent) and agent.name not in {*had, *lineage}


# --- results ----------------------------------------------------------------------------------------

MAX_JOIN_BYTES = 524_288
"""Largest JSON size of the results in one event: half of the bus's message limit."""


def result_of(task: TaskState, clearance: Collection[str] | None = None) -> TaskResult:
    """Return the result of an ended task for a reader with this clearance (None: for everything)."""
    end = task.ended
    assert end is not None
    assert task.state in ("delivered", "failed", "cancelled")
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    summary, withheld = "", None
    if isinstance(end, TaskDelivered):
        summary = end.summary
        facts = tuple(fact for fact in end.facts if clearance is None or is_cleared((fact,), clearance))
        artifacts = tuple(
            item for item in end.artifacts if clearance is None or is_cleared((item,), clearance)
        )
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
    hidden: list[Fact | Artifact] = [fact for fact in end.facts if fact not in facts]
    hidden += [item for item in end.artifacts if item not in artifacts]
    if not hidden:
        return None
    return Withheld(
        labels=tuple(sorted({label for item in hidden for label in item.labels})),
        facts=len(end.facts) - len(facts),
        artifacts=len(end.artifacts) - len(artifacts),
    )


def size_of(task: TaskState) -> int:
    """Return the JSON size in bytes of a task's whole result."""
    return len(msgspec.json.encode(result_of(task)))
