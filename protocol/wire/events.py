"""The event catalogue: every fact that a request's log can hold, as one tagged union."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from protocol.wire.commands import Doubt, Failure, ForkedFrom, Proposal, Report, Submit, Usage
from protocol.wire.config import Policy
from protocol.wire.event import ControlEvent, Event, RoundEvent
from protocol.wire.event_parts import Assignment, Continued, Grounds, PlannedTask, TaskError
from protocol.wire.handoff import Artifact, Budget, Constraints, Fact, Refusal
from protocol.wire.ids import AgentName, ContinueWith, RequestId, TurnId
from protocol.wire.moves import Ask, Join, Move


class RequestOpened(Event, frozen=True, kw_only=True, tag="request.opened"):
    """A submit was admitted. Opens the entry agent's first turn."""

    client: AgentName
    work: Assignment
    asked: Constraints = Constraints()
    """Constraints as the submit asked for them; `work` has the effective ones."""
    digest: str
    """SHA-256 of the submit's bytes."""
    policy: Policy
    policy_hash: str
    deadline: int
    """Deadline of the request, UTC µs."""
    prices: Mapping[str, Any] = {}
    conversation: str | None = None
    grounds: Grounds
    rerun_of: RequestId | None = None
    """The request that this one repeats."""
    remembered: tuple[str, ...] = ()
    """Keys of the facts that the conversation remembers from earlier requests, including withheld ones."""
    forked_from: ForkedFrom | None = None
    """The request that this one continues."""
    continue_with: ContinueWith | None = None
    """As in the submit."""
    continued: Continued | None = None
    """Set if it was to go to the agent that spoke last in the conversation, and one had."""


class RequestRefused(Event, frozen=True, kw_only=True, tag="request.refused"):
    """A well-formed submit was refused. The request never has a turn."""

    client: AgentName
    submit: Submit
    refusal: Refusal
    digest: str
    policy: Policy | None = None


class HandoffAdmitted(RoundEvent, frozen=True, kw_only=True, tag="handoff.admitted"):
    """The work moved on. Ends the giver's turn and opens the target's.

    `added` and `artifacts` name what the move added. The values are in `work` or in the `facts.withheld`
    before.
    """

    work: Assignment
    asked: Constraints = Constraints()
    report: Report = Report()
    grounds: Grounds
    added: tuple[str, ...] = ()
    """Keys of new or changed facts, in order."""
    dropped: tuple[str, ...] = ()
    """Keys of facts that are no longer carried, in order."""
    artifacts: tuple[str, ...] = ()
    """Names of new or changed artifacts, in order."""
    instead_of: AgentName | None = None
    """The agent that the move named, whose breaker was open: its fallback got the work."""


class MoveRefused(RoundEvent, frozen=True, kw_only=True, tag="move.refused"):
    """A move was refused. Opens the holder's next round; `work` is None if no round was left."""

    move: Move
    refusal: Refusal
    work: Assignment | None = None
    report: Report = Report()
    grounds: Grounds
    oversized: int = 0
    """As in the proposal: if set, `move` is a summary of the proposed move."""


class MoveDeferred(RoundEvent, frozen=True, kw_only=True, tag="move.deferred"):
    """A proposal is kept whole, to be decided after a thaw, because its request is frozen."""

    proposal: Proposal
    sender: AgentName


class FactsWithheld(Event, frozen=True, kw_only=True, tag="facts.withheld"):
    """What the reader of the next event of this cause may not see, kept for readers who may.

    Before an event that gives work: what its holder is not cleared for. Before a question, or an end that the
    client reads: the grounds and the agent's report, which that event leaves out. Before an answer, `facts`
    are those that the conversation remembers from now on; before a submit's refusal, those that it remembers.
    """

    target: AgentName
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    report: Report = Report()
    grounds: Grounds | None = None
    move: Move | None = None
    """The move that ended the request, unless it is `fail`."""


class TurnFailed(RoundEvent, frozen=True, kw_only=True, tag="turn.failed"):
    """A round of a turn failed: its agent reported it, or its time ran out."""

    error: Failure
    retry_at: int | None = None
    """UTC µs at which the next round begins; None if the turn escalates."""
    report: Report = Report()
    sender: AgentName | None = None
    """The agent that reported it; None for a timeout, which the guard found."""
    grounds: Grounds | None = None


class TurnRetried(Event, frozen=True, kw_only=True, tag="turn.retried"):
    """The holder's next round after a failure."""

    turn: TurnId
    work: Assignment


class TurnSuspended(RoundEvent, frozen=True, kw_only=True, tag="turn.suspended"):
    """A turn asked the client or people a question. It waits for the reply without holding a lease."""

    ask: Ask
    expires_at: int
    agent: AgentName | None = None
    """The agent that asks, if its conversation remembers that."""
    conversation: str | None = None
    """The conversation that remembers who asked; None if it does not."""


class TurnResumed(Event, frozen=True, kw_only=True, tag="turn.resumed"):
    """A suspended turn goes on. Opens its next round, with the reply, the expiry, or the join's results."""

    turn: TurnId
    work: Assignment
    sender: AgentName | None = None
    control: str = ""
    """The id of the reply's control message."""
    grounds: Grounds | None = None
    """Joins: `target` is the lead's current entry in the fleet, which decides what it may see."""


class EscalationRaised(RoundEvent, frozen=True, kw_only=True, tag="escalation.raised"):
    """A person is asked to take over. Ends the holder's turn and opens the human's."""

    reason: str
    """A code: `asked`, `refusals`, `failed`, `sla`, or a failure's code."""
    work: Assignment
    tier: int = 1
    report: Report = Report()
    grounds: Grounds | None = None
    added: tuple[str, ...] = ()
    """As in `handoff.admitted`."""


class EscalationAssigned(Event, frozen=True, kw_only=True, tag="escalation.assigned"):
    """An escalation was assigned to a person."""

    turn: TurnId
    person: str
    by: str
    sender: AgentName
    control: str


class EscalationResolved(Event, frozen=True, kw_only=True, tag="escalation.resolved"):
    """A person passed the work on: an agent gets a turn, in a new segment."""

    turn: TurnId
    """The human's turn that ends."""
    work: Assignment
    by: str
    sender: AgentName
    control: str
    summary: str = ""
    again: bool = False
    grounds: Grounds
    budget: Budget | None = None
    """What the person granted; `work` has everything that may now be spent."""
    added: tuple[str, ...] = ()
    """As in `handoff.admitted`."""


class EffectDoubted(RoundEvent, frozen=True, kw_only=True, tag="effect.doubted"):
    """An effect may or may not have happened. The turn waits until a person settles it."""

    effect: Doubt
    report: Report = Report()


class EffectSettled(Event, frozen=True, kw_only=True, tag="effect.settled"):
    """A person settled an effect in doubt. Opens the holder's next round."""

    turn: TurnId
    work: Assignment
    outcome: Literal["done", "not_done"]
    result: Any = None
    by: str = ""
    sender: AgentName
    control: str


class RequestFrozen(ControlEvent, frozen=True, kw_only=True, tag="request.frozen"):
    """The request is frozen: moves are deferred until a thaw."""

    since: int | None = None
    """UTC µs at which the bus stored the order, and clocks stopped; None: they stopped at `at`."""


class RequestThawed(ControlEvent, frozen=True, kw_only=True, tag="request.thawed"):
    """The request is thawed: moves are decided again, a deferred one first."""


class RequestCompleted(RoundEvent, frozen=True, kw_only=True, tag="request.completed"):
    """The request has its answer. Ends every turn; no event follows."""

    answer: Any
    by: str = ""
    """The person's name, if a person answered."""
    sender: AgentName
    control: str = ""
    digest: str = ""
    """SHA-256 of the submit's bytes. It tells a client which submit this answers."""
    conversation: str | None = None
    """The conversation that remembers what the answer leaves: facts, and who gave it. None if it does not."""
    cancel_open: bool = False
    """True if the answer cancels the tasks that are still open."""
    usage: Usage | None = None
    """Policies with `tell_client`: what the request was charged, without tasks that the end cancels."""
    path: tuple[AgentName, ...] = ()
    """Policies with `tell_client`: the request's holders in order, `human` for people. The newest 100."""


class RequestFailed(RoundEvent, frozen=True, kw_only=True, tag="request.failed"):
    """The request was given up: by the move `fail`, or because there was no other way left."""

    code: str
    """`failed` or a code of the agent; `max_escalations`, `no_human`, `budget_exhausted`, `event_too_large`;
    or `guard_failed`, which belongs to no turn and leaves `turn` empty."""
    reason: str = ""
    sender: AgentName | None = None
    digest: str = ""
    usage: Usage | None = None
    path: tuple[AgentName, ...] = ()
    """As in `request.completed`, like `usage`."""


class RequestExpired(Event, frozen=True, kw_only=True, tag="request.expired"):
    """The request's deadline passed, or the deadline of the person who had it."""

    deadline: int
    digest: str = ""
    usage: Usage | None = None
    path: tuple[AgentName, ...] = ()
    """As in `request.completed`, like `usage`."""
    with_people: bool = False
    """True if a person had it, and the policy's `human_deadline_s` was over."""

    @property
    def explanation(self) -> str:
        """One line that tells whose deadline passed."""
        return "people did not decide in time" if self.with_people else "the request's deadline passed"


class RequestCancelled(ControlEvent, frozen=True, kw_only=True, tag="request.cancelled"):
    """The client or an operator cancelled the request. Ends every turn; no event follows."""

    digest: str = ""
    usage: Usage | None = None
    path: tuple[AgentName, ...] = ()
    """As in `request.completed`, like `usage`."""


class TurnDelegated(RoundEvent, frozen=True, kw_only=True, tag="turn.delegated"):
    """A lead's plan was admitted. Its turn waits for the join. In no inbox, since it holds the whole plan."""

    tasks: tuple[PlannedTask, ...]
    join: Join
    cancel: tuple[str, ...] = ()
    expires_at: int | None = None
    """Latest UTC µs at which the lead runs again."""
    report: Report = Report()
    grounds: Grounds
    within_s: float | None = None
    """Seconds as the lead asked for them; `expires_at` is the result."""


class TaskOpened(Event, frozen=True, kw_only=True, tag="task.opened"):
    """A task was given to an agent. Opens the worker's turn; tells nothing about other tasks."""

    lead: TurnId
    name: str
    work: Assignment
    grounds: Grounds | None = None
    """Claims: what the verdict depended on."""


class TaskOffered(Event, frozen=True, kw_only=True, tag="task.offered"):
    """A task is offered to all agents that take its intent, in the intent's inbox. A claim opens the turn.

    If it is not claimed in time, the same offer goes once to each capable agent, in that agent's own inbox.
    """

    lead: TurnId
    name: str
    intent: str
    offer: Assignment
    """The work, limited to what all its readers (or its only one) may see. `turn` is the offer's id."""
    claim_by: int
    """Earliest UTC µs at which the offer ends. Its clock is stopped while no agent could claim it."""
    grounds: Grounds | None = None
    """On the first repeat to a single agent: `candidates` are all agents that get the offer again."""

    @property
    def again(self) -> bool:
        """True if it was not claimed in time and now goes to a single agent."""
        return str(self.offer.turn) != self.id


class TaskDelivered(RoundEvent, frozen=True, kw_only=True, tag="task.delivered"):
    """A worker delivered its result, which is whole here. Ends its turn; `turn.resumed` tells the lead."""

    name: str
    summary: str
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    cancel_open: bool = False
    sender: AgentName
    report: Report = Report()
    grounds: Grounds


class TaskFailed(RoundEvent, frozen=True, kw_only=True, tag="task.failed"):
    """A task failed. Its lead goes on."""

    name: str
    error: TaskError
    sender: AgentName | None = None
    """The agent that gave the task up; None if the failure follows from the log."""
    report: Report = Report()
    grounds: Grounds | None = None


class TaskCancelled(Event, frozen=True, kw_only=True, tag="task.cancelled"):
    """A task was cancelled: by its lead, or because its lead's turn is over."""

    turn: TurnId
    name: str
    why: Literal["called_off", "lead_ended"]
    grounds: Grounds | None = None


class FactsPosted(RoundEvent, frozen=True, kw_only=True, tag="facts.posted"):
    """A turn put facts on the board, and goes on."""

    post: int
    """Counts the posts of this round, from 0."""
    facts: tuple[Fact, ...]
    sender: AgentName
    grounds: Grounds


AnyEvent = (
    RequestOpened
    | RequestRefused
    | HandoffAdmitted
    | MoveRefused
    | MoveDeferred
    | FactsWithheld
    | TurnFailed
    | TurnRetried
    | TurnSuspended
    | TurnResumed
    | EscalationRaised
    | EscalationAssigned
    | EscalationResolved
    | EffectDoubted
    | EffectSettled
    | RequestFrozen
    | RequestThawed
    | RequestCompleted
    | RequestFailed
    | RequestExpired
    | RequestCancelled
    | TurnDelegated
    | TaskOpened
    | TaskOffered
    | TaskDelivered
    | TaskFailed
    | TaskCancelled
    | FactsPosted
)

Ended = RequestRefused | RequestCompleted | RequestFailed | RequestExpired | RequestCancelled
"""The types of a request's last event."""

Verdict = (
    RequestOpened
    | RequestRefused
    | HandoffAdmitted
    | MoveRefused
    | MoveDeferred
    | TurnSuspended
    | EscalationRaised
    | RequestCompleted
    | RequestFailed
    | TurnDelegated
    | TaskDelivered
    | TaskFailed
)
"""Events with which a guard answers a submit or a proposal."""

TYPES: Final[Mapping[type[Event], str]] = {
    kind: str(kind.__struct_config__.tag) for kind in AnyEvent.__args__
}
"""The wire name of each event type."""


def type_of(event: AnyEvent | type[Event]) -> str:
    """Return an event's wire name."""
    return TYPES[event if isinstance(event, type) else type(event)]
