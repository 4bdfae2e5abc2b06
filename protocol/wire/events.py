"""The event catalogue: every fact that a request's log can hold, as one tagged union.

An event is past tense and immutable. Its envelope (`v` to `to`) lies beside its payload, so that an
exported line stands alone. The name in `to` finds the event in its inbox and acts on it;
such an event holds nothing that its reader may not see, and (as `work`) everything they need.

Fields are only ever added, at the end and with a default; anything else is a new form, with a number of its
own (`v`). Whatever form a release has written stays readable.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from protocol.wire.commands import Doubt, Failure, ForkedFrom, Proposal, Report, Submit
from protocol.wire.config import Policy
from protocol.wire.event_parts import Assignment, Grounds, PlannedTask, TaskError
from protocol.wire.freeze import Span
from protocol.wire.handoff import Artifact, Budget, Constraints, Fact, Refusal
from protocol.wire.ids import AgentName, Cause, EventId, RequestId, TurnId
from protocol.wire.moves import Ask, Join, Move

VERSION: Final = 2
"""The form of the events that this build writes, and of the oldest that it reads."""


class Event(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="type"):
    """The envelope."""

    v: Literal[2]
    id: EventId
    request: RequestId
    n: int
    """The event's number in its request, dense from 0."""
    at: int
    """UTC µs."""
    cause: Cause
    prev: str
    """SHA-256 (hex) of the stored bytes of the event before it; 64 zeros for the first."""
    salt: str
    """Random, so that nobody who does not read the event can guess it from the `prev` of the next one."""
    to: AgentName
    """Whose inbox it lies in; `_` for nobody's."""
    trace: str = ""
    """W3C `traceparent` of the span that decided it; empty where neither the guard nor the sender traced."""
    stood: tuple[Span, ...] = ()
    """When the whole mesh was frozen, as far as no event of the request before this one says."""

    @property
    def opens_turn(self) -> bool:
        """Return True if it opens a turn: its own id is the turn's."""
        return self.work is not None and str(self.work.turn) == self.id

    # Fields that many events have. Of an event without one: none, empty, or a round that is none.

    @property
    def turn(self) -> TurnId:
        return TurnId("")

    @property
    def round(self) -> int:
        return -1

    @property
    def work(self) -> Assignment | None:
        return None

    @property
    def refusal(self) -> Refusal | None:
        return None

    @property
    def report(self) -> Report | None:
        return None

    @property
    def grounds(self) -> Grounds | None:
        return None

    @property
    def sender(self) -> AgentName | None:
        return None

    @property
    def control(self) -> str:
        return ""

    @property
    def added(self) -> tuple[str, ...]:
        return ()

    @property
    def dropped(self) -> tuple[str, ...]:
        return ()


class _OfRound(Event, frozen=True, kw_only=True):
    """What came of a round."""

    turn: TurnId
    round: int


class _Ordered(Event, frozen=True, kw_only=True):
    """What somebody ordered for the whole request."""

    by: str
    sender: AgentName
    control: str
    reason: str = ""


class RequestOpened(Event, frozen=True, kw_only=True, tag="request.opened"):
    """A submit was taken: the entry agent's first turn."""

    client: AgentName
    work: Assignment
    asked: Constraints = Constraints()
    """Constraints as the submit asked for them; `work` has them as they hold."""
    digest: str
    """SHA-256 of the submit's bytes."""
    policy: Policy
    policy_hash: str
    deadline: int
    """Of the request, UTC µs."""
    prices: Mapping[str, Any] = {}
    conversation: str | None = None
    grounds: Grounds
    rerun_of: RequestId | None = None
    """The request that this one does again."""
    remembered: tuple[str, ...] = ()
    """Keys of the facts, withheld ones too, that earlier requests of the conversation ended with."""
    forked_from: ForkedFrom | None = None
    """The request that this one goes on from."""


class RequestRefused(Event, frozen=True, kw_only=True, tag="request.refused"):
    """A well-formed submit that cannot be taken. No turn is ever opened."""

    client: AgentName
    submit: Submit
    refusal: Refusal
    digest: str
    policy: Policy | None = None


class HandoffAdmitted(_OfRound, frozen=True, kw_only=True, tag="handoff.admitted"):
    """The work moved on: the target's turn, and the end of the giver's.

    `added` and `artifacts` name what the move brought. `work` has it, or the `facts.withheld` before.
    """

    work: Assignment
    asked: Constraints = Constraints()
    report: Report = Report()
    grounds: Grounds
    added: tuple[str, ...] = ()
    """Keys of the facts that are new or changed, in order."""
    dropped: tuple[str, ...] = ()
    """Keys of the facts that are carried no longer, in order."""
    artifacts: tuple[str, ...] = ()
    """Names of the artifacts that are new or changed, in order."""


class MoveRefused(_OfRound, frozen=True, kw_only=True, tag="move.refused"):
    """A move did not happen. Opens the holder's next round; without `work`, none was left."""

    move: Move
    refusal: Refusal
    work: Assignment | None = None
    report: Report = Report()
    grounds: Grounds
    oversized: int = 0
    """As in the proposal: `move` is then an outline of what was asked for."""


class MoveDeferred(_OfRound, frozen=True, kw_only=True, tag="move.deferred"):
    """A proposal waits, whole, because its request is frozen."""

    proposal: Proposal
    sender: AgentName


class FactsWithheld(Event, frozen=True, kw_only=True, tag="facts.withheld"):
    """What the reader of the next event of this cause may not see, kept for those who may.

    Of an event that gives work: what its holder is not cleared for. Of a question, and of an end that the
    client reads: what the verdict rested on and what the agent reported, which the event itself does not say.
    Before an answer `facts` are those that the conversation remembers from now on; before the refusal of a
    submit, those that it remembers.
    """

    target: AgentName
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    report: Report = Report()
    grounds: Grounds | None = None
    move: Move | None = None
    """The move that ended the request, where it is another than the move `fail`."""


class TurnFailed(_OfRound, frozen=True, kw_only=True, tag="turn.failed"):
    """A turn's round broke, by its own word or because its time ran out."""

    error: Failure
    retry_at: int | None = None
    """UTC µs of the next round; none: the turn escalates."""
    report: Report = Report()
    sender: AgentName | None = None
    """The agent that said so; none: the guard, by the clock."""
    grounds: Grounds | None = None


class TurnRetried(Event, frozen=True, kw_only=True, tag="turn.retried"):
    """The holder's next round after a failure."""

    turn: TurnId
    work: Assignment


class TurnSuspended(_OfRound, frozen=True, kw_only=True, tag="turn.suspended"):
    """A question to the client or to people; the turn waits without holding a lease."""

    ask: Ask
    expires_at: int


class TurnResumed(Event, frozen=True, kw_only=True, tag="turn.resumed"):
    """The holder's next round, with the reply or the fact that none came in time."""

    turn: TurnId
    work: Assignment
    sender: AgentName | None = None
    control: str = ""
    """The reply's own id."""
    grounds: Grounds | None = None
    """Of a join: the lead as the fleet file has it now, as `target`; it sees by that."""


class EscalationRaised(_OfRound, frozen=True, kw_only=True, tag="escalation.raised"):
    """A person is asked to take over: the human's turn, and the end of the holder's."""

    reason: str
    """A code: `asked`, `refusals`, `failed`, `sla`, or a failure's code."""
    work: Assignment
    tier: int = 1
    report: Report = Report()
    grounds: Grounds | None = None
    added: tuple[str, ...] = ()
    """As in `handoff.admitted`."""


class EscalationAssigned(Event, frozen=True, kw_only=True, tag="escalation.assigned"):
    """A person looks at an escalation."""

    turn: TurnId
    person: str
    by: str
    sender: AgentName
    control: str


class EscalationResolved(Event, frozen=True, kw_only=True, tag="escalation.resolved"):
    """A person gave the work on: an agent gets a turn, in a fresh segment."""

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
    """What the person granted anew; `work` has the whole of what may be spent."""
    added: tuple[str, ...] = ()
    """As in `handoff.admitted`."""


class EffectDoubted(_OfRound, frozen=True, kw_only=True, tag="effect.doubted"):
    """An effect may or may not have happened; the turn waits until somebody says which."""

    effect: Doubt
    report: Report = Report()


class EffectSettled(Event, frozen=True, kw_only=True, tag="effect.settled"):
    """Somebody said what became of it: the holder's next round."""

    turn: TurnId
    work: Assignment
    outcome: Literal["done", "not_done"]
    result: Any = None
    by: str = ""
    sender: AgentName
    control: str


class RequestFrozen(_Ordered, frozen=True, kw_only=True, tag="request.frozen"):
    """Moves are deferred from here on, until a thaw."""

    since: int | None = None
    """UTC µs: when the bus stored the order. Clocks stand from then on; none: from `at` on."""


class RequestThawed(_Ordered, frozen=True, kw_only=True, tag="request.thawed"):
    """Moves are judged again; a deferred one is judged first."""


class RequestCompleted(_OfRound, frozen=True, kw_only=True, tag="request.completed"):
    """The answer. Ends every turn; nothing follows."""

    answer: Any
    by: str = ""
    """The person, if a person answered."""
    sender: AgentName
    control: str = ""
    digest: str = ""
    """SHA-256 of the submit's bytes: a client knows by it which submit this answers."""
    conversation: str | None = None
    """The conversation that remembers what the answer leaves; none if it leaves nothing."""
    cancel_open: bool = False
    """True if the answer calls off the tasks that are still open."""


class RequestFailed(_OfRound, frozen=True, kw_only=True, tag="request.failed"):
    """Given up: by the move `fail`, or because nobody was left to ask."""

    code: str
    """`failed` or the agent's own; `max_escalations`, `no_human`, `budget_exhausted`, `event_too_large`; or
    `guard_failed`, which ends a request without any turn: `turn` is empty then."""
    reason: str = ""
    sender: AgentName | None = None
    digest: str = ""


class RequestExpired(Event, frozen=True, kw_only=True, tag="request.expired"):
    """Its deadline passed."""

    deadline: int
    digest: str = ""


class RequestCancelled(_Ordered, frozen=True, kw_only=True, tag="request.cancelled"):
    """Its client or an operator called it off. Ends every turn; nothing follows."""

    digest: str = ""


class TurnDelegated(_OfRound, frozen=True, kw_only=True, tag="turn.delegated"):
    """A lead's plan was admitted; its turn waits for the join. In nobody's inbox: it holds the whole plan."""

    tasks: tuple[PlannedTask, ...]
    join: Join
    cancel: tuple[str, ...] = ()
    expires_at: int | None = None
    """UTC µs at which the lead runs again at the latest."""
    report: Report = Report()
    grounds: Grounds
    within_s: float | None = None
    """As the lead asked for it; `expires_at` is what came of it."""


class TaskOpened(Event, frozen=True, kw_only=True, tag="task.opened"):
    """A worker's turn. It says nothing of other tasks."""

    lead: TurnId
    name: str
    work: Assignment
    grounds: Grounds | None = None
    """Of a claim: what it rested on."""


class TaskOffered(Event, frozen=True, kw_only=True, tag="task.offered"):
    """A task for any agent that takes its intent, in the intent's inbox. It opens no turn; a claim does.

    If nobody claims it in time, the same offer goes once to each agent that could, in the agent's own inbox.
    """

    lead: TurnId
    name: str
    intent: str
    offer: Assignment
    """The work as every reader may see it, or the one agent that it goes to again. `turn` is the offer."""
    claim_by: int
    """UTC µs at which it is over at the earliest: its clock stands while nobody could claim."""
    grounds: Grounds | None = None
    """Of the first that goes to one agent alone: `candidates` are all who get one."""

    @property
    def again(self) -> bool:
        """True if nobody claimed it in time, and it goes to one agent alone."""
        return str(self.offer.turn) != self.id


class TaskDelivered(_OfRound, frozen=True, kw_only=True, tag="task.delivered"):
    """A worker's result, whole, and the end of its turn. Its lead is told by `turn.resumed`."""

    name: str
    summary: str
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    cancel_open: bool = False
    sender: AgentName
    report: Report = Report()
    grounds: Grounds


class TaskFailed(_OfRound, frozen=True, kw_only=True, tag="task.failed"):
    """A task came to nothing. Its lead goes on."""

    name: str
    error: TaskError
    sender: AgentName | None = None
    """The agent that gave it up; none: it follows from what is in the log."""
    report: Report = Report()
    grounds: Grounds | None = None


class TaskCancelled(Event, frozen=True, kw_only=True, tag="task.cancelled"):
    """A task was called off: by its lead, or because its lead's turn is over."""

    turn: TurnId
    name: str
    why: Literal["called_off", "lead_ended"]
    grounds: Grounds | None = None


class FactsPosted(_OfRound, frozen=True, kw_only=True, tag="facts.posted"):
    """A turn put facts on the board; it goes on."""

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
"""The last event of a request is one of these."""

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
"""Events by which a guard answers somebody who asked for something."""

TYPES: Final[Mapping[type[Event], str]] = {
    kind: str(kind.__struct_config__.tag) for kind in AnyEvent.__args__
}
"""The wire name of each event."""


def type_of(event: AnyEvent | type[Event]) -> str:
    """Return an event's wire name."""
    return TYPES[event if isinstance(event, type) else type(event)]
