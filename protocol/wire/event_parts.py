"""Parts of events: the assignment that a holder works with, and the grounds of a verdict.

The holder of a *task* learns nothing about sibling tasks or the plan. A lead learns the outcome of its tasks
as structured results and typed errors, never as a sentence that a model made of a failure.

A verdict depends on the log and its grounds alone. So a log can be judged again from a file.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from protocol.wire.commands import Failure, ForkedFrom, Report, Usage
from protocol.wire.config import TURN_TIMEOUT_S, AgentEntry, BreakerState
from protocol.wire.handoff import Artifact, Constraints, Fact, Handoff, Refusal, Rule
from protocol.wire.ids import AgentName, TurnId
from protocol.wire.moves import Move, Task


class Part(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Base class of event parts."""


class RoundOutcome(Part, frozen=True, kw_only=True):
    """How an earlier round of a turn ended. The agent gets it when the turn runs again."""

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
    """Approvals: the digest in the ask as the guard admitted it; empty for other asks."""
    reason: str = ""
    """Replies: the reason, in the replier's words."""


class Withheld(Part, frozen=True, kw_only=True):
    """What is hidden from the reader of an event: only the labels and the counts."""

    labels: tuple[str, ...]
    facts: int = 0
    artifacts: int = 0


class TaskError(Part, frozen=True, kw_only=True):
    """Why a task failed: a code at each level, from where the failure began up to here."""

    code: str
    """At the reporting level: a failure's code, a rule's name, `refusals`, `failed`, `unclaimed` …"""
    message: str = ""
    agent: AgentName
    attempts: int = 1
    """Rounds that the agent began."""
    lineage: tuple[AgentName, ...] = ()
    """Holders from the root turn to the failed one."""
    origin: "TaskError | None" = None
    """The error of the subtask that made it fail, if it names one."""


TaskStatus = Literal["delivered", "failed", "cancelled"]


class TaskResult(Part, frozen=True, kw_only=True):
    """The outcome of a task, as one reader sees it."""

    name: str
    task: TurnId
    """The task's turn; for an unclaimed offer, the offer's id."""
    status: TaskStatus
    agent: AgentName
    agents: tuple[AgentName, ...] = ()
    """All agents that held it, in order, if a fallback took over."""
    summary: str = ""
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    error: TaskError | None = None
    """Set if the task failed."""
    withheld: Withheld | None = None
    """What is hidden from this reader; the log has the whole result."""
    cost: Usage = Usage()
    """Cost of the task and everything below it."""
    attempts: int = 1
    duration_s: float = 0.0


class PlannedTask(Part, frozen=True, kw_only=True):
    """A task as admitted: as the lead asked for it, plus what the guard filled in."""

    task: Task
    turn: TurnId
    """The turn that it opens; for an offer, the offer's id."""
    agent: AgentName = AgentName("")
    """The agent that gets it; empty for an offer."""
    why: str = ""
    """Why the guard picked this agent; empty if the lead named it."""
    constraints: Constraints = Constraints()
    """The task's effective limits: absolute deadline, actions, share of the budget."""
    uses: tuple[TurnId, ...] = ()
    """The tasks in `task.uses`, each by the turn that its plan gave it."""
    revises: TurnId = TurnId("")
    """The task in `task.revises`, likewise by turn, since a later task may have the same name."""


class Posted(Part, frozen=True, kw_only=True):
    """One fact on the board of a swarm."""

    by: AgentName
    fact: Fact


class Continued(Part, frozen=True, kw_only=True):
    """How a request went on with the agent that spoke last in its conversation."""

    last: AgentName
    """The agent that answered or asked last."""
    why: Rule | None = None
    """Why the entry agent got it instead: `known_agent` or `agent_available`. None if `last` got it."""


class Assignment(Part, frozen=True, kw_only=True):
    """What a holder gets to work with. An inbox event with an assignment opens a round of a turn."""

    turn: TurnId
    """The turn to propose for: the id of the event that opened it."""
    round: int
    handoff: Handoff
    path: tuple[AgentName, ...]
    """Holders from the entry agent to the reader."""
    depth: int
    withheld: Withheld | None = None
    past: tuple[RoundOutcome, ...] = ()
    """Earlier rounds of the turn, in order."""
    reported: Report = Report()
    """The sum of the earlier rounds' reports, from which the next report continues."""
    continues: TurnId | None = None
    """An earlier turn whose journal and effect keys this turn continues."""
    prices: Mapping[str, Any] = {}
    """Prices by model id, as of the request's opening. The turn charges by them."""
    topology: str = "handoff"
    """Decides which moves the turn has: see `TOPOLOGIES`."""
    task: str = ""
    """The name of the task that this turn does; empty for a root turn."""
    results: tuple[TaskResult, ...] = ()
    """Leads: results of tasks that ended since the last round. Tasks: results that it was given to use."""
    waiting: tuple[str, ...] = ()
    """Leads: names of tasks that are still open."""
    board: tuple[Posted, ...] = ()
    """Swarms: the newest fact on the board for each agent and key, as far as the reader may see it."""
    committed: Usage = Usage()
    """Leads: the part of the budget that tasks have spent, or that open tasks have reserved."""
    timeout_s: float = TURN_TIMEOUT_S
    """Longest duration of the round under the request's policy. It also limits waiting for a busy model."""
    forked_from: ForkedFrom | None = None
    """Forks: what the agent does about effects, and where its earlier steps are."""
    seal: int = 0
    """Index in `path`: by `no_return`, nothing goes back to a holder before it."""

    @property
    def journal_id(self) -> TurnId:
        """The turn id under which this turn's steps are journaled."""
        return self.continues or self.turn


# --- grounds ----------------------------------------------------------------------------------------


class Candidate(Part, frozen=True, kw_only=True):
    """An agent that a task could go to, or that got an offer again, as a guard found it."""

    entry: AgentEntry
    breaker: BreakerState = "closed"
    since: int | None = None
    """UTC µs at which its breaker opened, as in `Grounds.breaker_since`."""
    until: int | None = None
    served: bool = True
    took: bool = False
    """Offers that are over: True if the agent took the offer from its own inbox without claiming it."""


class Grounds(Part, frozen=True, kw_only=True):
    """What a guard knew when it decided."""

    fleet: int = 0
    """Revision of the fleet document."""
    sender: AgentEntry | None = None
    """The proposing agent's entry in the fleet; None if it is not an agent there."""
    target: AgentEntry | None = None
    """The entry of the agent that would get the work; None if it is not in the fleet."""
    human: bool = False
    """True if people read the `human` queue."""
    breaker: BreakerState = "closed"
    """Breaker of the target. `half_open` means that this very message is let through on trial."""
    breaker_since: int | None = None
    """UTC µs at which it opened; None if it is closed or was opened by hand."""
    breaker_until: int | None = None
    """UTC µs from which on a message may be let through on trial."""
    peers: tuple[AgentName, ...] = ()
    """With an open breaker: other agents that take what the sender may give."""
    served: bool | None = None
    """True if an instance serves the agent that is waited for; None if nothing depended on it."""
    longest_s: float | None = None
    """Longest deadline of a request: half of the log's retention."""
    served_since: int | None = None
    """UTC µs since when every probe of the guard has found the same `served`. While the agent is served, the
    span begins no earlier than when the round left the queue, or the queue ahead of it last moved."""
    unbegun: bool = False
    """True if a guard ended the round on a timeout while it was still in the inbox. It cost nothing then."""
    candidates: tuple[Candidate, ...] = ()
    """Agents that a plan's tasks could go to, in fleet order; for an offer, the agents that get it again; for
    a submit, the agent that spoke last in its conversation and did not get it."""
    removed: bool = False
    """True if a guard ended the round because its agent left the fleet; offers: no agent there may claim
    it."""
    form: Mapping[str, Any] | None = None
    """Transfers: what the facts have to be, as the fleet file says of this edge; None if it says nothing."""
