"""Parts of events: the assignment that a holder works with, and the grounds of a verdict.

The holder of a *task* is told nothing of its siblings or of the plan. A lead is told what became of its
tasks: structured results and typed errors, never a sentence that a model made of a failure.

A verdict rests on the log and on its grounds alone. So a log can be judged again from a file.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from protocol.wire.commands import Failure, ForkedFrom, Report, Usage
from protocol.wire.config import TURN_TIMEOUT_S, AgentEntry, BreakerState
from protocol.wire.handoff import Artifact, Constraints, Fact, Handoff, Refusal
from protocol.wire.ids import AgentName, TurnId
from protocol.wire.moves import Move, Task


class Part(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Base of what events are made of."""


class RoundOutcome(Part, frozen=True, kw_only=True):
    """How an earlier round of a turn ended: what its agent is told when it runs again."""

    round: int
    how: Literal["refused", "failed", "replied", "expired", "settled", "resolved", "joined"]
    move: Move | None = None
    refusal: Refusal | None = None
    failure: Failure | None = None
    reply: Any = None
    settled: Literal["done", "not_done"] | None = None
    step: str = ""
    by: str = ""
    asked: str = ""
    """Of an approval: the digest that its ask had, as the guard admitted it; empty for other asks."""
    reason: str = ""
    """Of a reply: why, in the words of who gave it."""


class Withheld(Part, frozen=True, kw_only=True):
    """What the reader of an event may not see: how much under which labels, and no more."""

    labels: tuple[str, ...]
    facts: int = 0
    artifacts: int = 0


class TaskError(Part, frozen=True, kw_only=True):
    """Why a task failed: by codes, with where it began and what each level above made of it."""

    code: str
    """Of the level that reports it: a failure's code, a rule's name, `refusals`, `failed`, `unclaimed` …"""
    message: str = ""
    agent: AgentName
    attempts: int = 1
    """Rounds that its agent began."""
    lineage: tuple[AgentName, ...] = ()
    """Holders from the root turn to the one that failed."""
    origin: "TaskError | None" = None
    """The task's own task that it failed for, where it names one."""


TaskStatus = Literal["delivered", "failed", "cancelled"]


class TaskResult(Part, frozen=True, kw_only=True):
    """What became of a task, as one reader sees it."""

    name: str
    task: TurnId
    """The task's turn; of an offer that nobody claimed, the offer."""
    status: TaskStatus
    agent: AgentName
    agents: tuple[AgentName, ...] = ()
    """All that had it, in order, where a fallback had it after another."""
    summary: str = ""
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    error: TaskError | None = None
    """Set if it failed."""
    withheld: Withheld | None = None
    """What of the result the reader may not see; the whole stands in the log."""
    cost: Usage = Usage()
    """Of the task and all below it."""
    attempts: int = 1
    duration_s: float = 0.0


class PlannedTask(Part, frozen=True, kw_only=True):
    """A task as it was admitted: as it was asked for, and what became of what was left open."""

    task: Task
    turn: TurnId
    """The turn that it opens; of an offer, the offer."""
    agent: AgentName = AgentName("")
    """Who gets it; empty for an offer."""
    why: str = ""
    """Why this agent, where the guard chose it."""
    constraints: Constraints = Constraints()
    """As they hold for it: absolute deadline, actions, its part of the budget."""
    uses: tuple[TurnId, ...] = ()
    """The tasks that `task.uses` names, each by the turn that it was planned under."""
    revises: TurnId = TurnId("")
    """The task that `task.revises` names, likewise. A later task may have the same name."""


class Posted(Part, frozen=True, kw_only=True):
    """One fact on the board of a swarm."""

    by: AgentName
    fact: Fact


class Assignment(Part, frozen=True, kw_only=True):
    """What a holder gets to work with. An inbox event that has it opens a round of a turn."""

    turn: TurnId
    """The turn to propose for; the id of the event that opened it."""
    round: int
    handoff: Handoff
    path: tuple[AgentName, ...]
    """Holders from the entry agent to the reader."""
    depth: int
    withheld: Withheld | None = None
    past: tuple[RoundOutcome, ...] = ()
    """The rounds before this one, in order."""
    reported: Report = Report()
    """What the rounds before this one reported, summed up: the next report begins with it."""
    continues: TurnId | None = None
    """The turn whose journal and effect keys this one takes up again."""
    prices: Mapping[str, Any] = {}
    """What models cost, by id, as they did when the request began: what the turn charges by."""
    topology: str = "handoff"
    """Which moves the turn has: see `TOPOLOGIES`."""
    task: str = ""
    """The name of the task that this turn does; empty for a root turn."""
    results: tuple[TaskResult, ...] = ()
    """Of a lead: of its tasks that ended since its last round. Of a task: what it was given to use."""
    waiting: tuple[str, ...] = ()
    """Of a lead: names of its tasks that are still open."""
    board: tuple[Posted, ...] = ()
    """Swarm: by agent and key, the newest fact on the board that the reader may see."""
    committed: Usage = Usage()
    """Of a lead: what its tasks have spent, and what the open ones have reserved, of the budget."""
    timeout_s: float = TURN_TIMEOUT_S
    """How long the round may take, by the request's policy: so long its agent may wait for a busy model."""
    forked_from: ForkedFrom | None = None
    """Of a fork: what its agent does about effects, and where its steps of before lie."""

    @property
    def journal_id(self) -> TurnId:
        """Under whose id the turn's steps are journaled."""
        return self.continues or self.turn


# --- grounds ----------------------------------------------------------------------------------------


class Candidate(Part, frozen=True, kw_only=True):
    """An agent that a task could go to, or that an offer went to again, as a guard found it."""

    entry: AgentEntry
    breaker: BreakerState = "closed"
    since: int | None = None
    """UTC µs since when its breaker is open; as `Grounds.breaker_since`."""
    until: int | None = None
    served: bool = True
    took: bool = False
    """Of an offer that is over: it took the offer out of its own inbox, and did not claim it."""


class Grounds(Part, frozen=True, kw_only=True):
    """What a guard knew when it decided."""

    fleet: int = 0
    """Revision of the fleet document."""
    sender: AgentEntry | None = None
    """The agent that proposes, as the fleet file has it; None if it is not an agent there."""
    target: AgentEntry | None = None
    """The agent that the work would go to; None if it is not in the fleet."""
    human: bool = False
    """True if people read the `human` queue."""
    breaker: BreakerState = "closed"
    """Of the target. `half_open`: this very message is what is let through on trial."""
    breaker_since: int | None = None
    """UTC µs since when it is open; None too where it was opened by hand."""
    breaker_until: int | None = None
    """UTC µs from which on somebody may be let through on trial."""
    peers: tuple[AgentName, ...] = ()
    """Where it is open: who else takes what the sender may give."""
    served: bool | None = None
    """True if anybody serves the agent that a wait is for; None if nothing hung on it."""
    longest_s: float | None = None
    """The longest deadline that a request may have: half of what the log keeps."""
    served_since: int | None = None
    """UTC µs since when every look of the guard has found `served` as it is. While the agent is served, the
    span begins no earlier than the round left the queue, or than the queue before it last moved."""
    unbegun: bool = False
    """True if the round that a guard ends by the clock lay in the inbox until then: it cost nothing."""
    candidates: tuple[Candidate, ...] = ()
    """Agents that a plan's tasks could go to, in the fleet's order; of an offer, to which it goes again."""
    removed: bool = False
    """True if the agent whose round a guard ends is not in the fleet; of an offer: nobody there may claim."""
