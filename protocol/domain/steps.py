"""The steps of a decision: what it needs, what it appends, whom it notifies, and its outcome.

`OpenDecision.next` returns the next step as a plain value. If the step is a `Need`, pass its answer, of the
type that it names, to `supply`; then the decision goes on.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar, final

from msgspec.structs import replace

from protocol.domain.admission import Late, Rejected
from protocol.domain.breaker import Permit, Signal
from protocol.domain.tasks import TaskState
from protocol.domain.turns import TurnState
from protocol.wire.commands import Command
from protocol.wire.config import AgentEntry, BreakerState, Policy, Quota
from protocol.wire.event_parts import Candidate, Grounds
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName, Cause
from protocol.wire.records import Questions

A = TypeVar("A")
_CLOSED = Permit("closed")


class Moment(NamedTuple):
    """The time and the salt of the next event."""

    now: int
    """UTC µs."""
    salt: str
    """96 random bits as text, fresh for every event."""


# --- what it needs --------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Need(Generic[A]):
    """Something that a decision cannot know by itself. It goes on once the need has an answer."""

    answer: A | None = field(default=None, init=False)

    def supply(self, answer: A) -> None:
        self.answer = answer


class ClientUse(NamedTuple):
    """How much of the log a client uses, and may use."""

    open_requests: int
    spent_bytes: float
    """Used bytes of an hour's allowance; more than the allowance if running requests overdrew it."""
    quota: Quota


class VerdictContext(NamedTuple):
    """What a verdict depends on besides the ledger and the fleet."""

    breaker: Permit = _CLOSED
    """The target's breaker."""
    policy: Policy | None = None
    """Submits: the named policy; None if there is no such policy."""
    prices: Mapping[str, Any] | None = None
    """Submits: prices by model id."""
    memory: tuple[Fact, ...] = ()
    """Submits: what the conversation remembers, if there is one."""
    use: ClientUse | None = None
    """Submits: how much of the log the sender uses; None if that is not counted."""
    last: AgentName | None = None
    """Submits that go to the agent that spoke last in their conversation: that agent, if there is one."""


@final
@dataclass(slots=True, eq=False)
class NeedVerdictContext(Need[VerdictContext]):
    """Asks for what the verdict on a command depends on."""

    command: Command
    target: AgentName | None
    """The agent whose breaker counts; None if the command gives work to no agent of the fleet, or if the
    agent depends on the answer: then a `NeedPermit` follows."""
    may_try: bool
    """True if the command may be the trial of an open breaker."""


@final
@dataclass(slots=True, eq=False)
class NeedPermit(Need[Permit]):
    """Asks for the breaker of an agent to which the command could go. It may be the trial of an open one."""

    command: Command
    agent: AgentName


@final
@dataclass(slots=True, eq=False)
class NeedPeers(Need[tuple[AgentName, ...]]):
    """Asks which of `agents` have a closed breaker, in the same order."""

    agents: tuple[AgentName, ...]


class AgentReadiness(NamedTuple):
    """Whether an agent can take new work."""

    breaker: Permit = _CLOSED
    """If half open, what the plan gives to this agent is the trial."""
    served: bool = True


@final
@dataclass(slots=True, eq=False)
class NeedCandidates(Need[tuple[AgentReadiness, ...]]):
    """Asks for the readiness of each of `agents`, in the same order. They could get a plan's tasks."""

    agents: tuple[AgentName, ...]
    trial: Cause
    """The cause that identifies a breaker's trial: the plan's tasks will have it."""


class Reader(NamedTuple):
    """What a probe found of an agent that may claim an offer."""

    served: bool
    since: int
    """UTC µs since when `served` has its value."""
    breaker: BreakerState = "closed"
    took: bool = False
    """True if it took the offer from its own inbox."""


class Attendance(NamedTuple):
    """What a probe found of the agent of a round."""

    served: bool
    since: int
    """UTC µs since when `served` has its value. While True: no earlier than when the round left the queue,
    or, if the round is still queued, than when the queue last moved."""
    unbegun: bool
    """True if the round is still in the inbox and nothing of it is in the journals."""

    @classmethod
    def of_any(cls, seen: Collection[Reader]) -> "Attendance":
        """Return the attendance of several agents, which are served if any of them is.

        The span begins with the agent that has been served longest by now, since it is not known who was
        served before.
        """
        since = [reader.since for reader in seen if reader.served]
        return cls(bool(since), min(since) if since else max(reader.since for reader in seen), unbegun=False)

    def within(self, grounds: Grounds, *, removed: bool) -> Grounds:
        """Return the grounds with this attendance in them."""
        served, since, unbegun = self
        return replace(grounds, served=served, served_since=since, unbegun=unbegun, removed=removed)


@final
@dataclass(slots=True, eq=False)
class NeedAttendance(Need[tuple[Attendance, ...]]):
    """Asks for the attendance of the agent of each of `turns`, in order. Their rounds may time out."""

    turns: tuple[TurnState, ...]


class OfferedTask(NamedTuple):
    """An offer that may have expired."""

    task: TaskState
    entries: tuple[AgentEntry, ...]
    """The fleet's entries of the agents that may claim it."""


class ReadersSeen(NamedTuple):
    """What probes found of the agents that may claim an offer. `swarm.readers_seen` makes it."""

    attendance: Attendance | None
    """Attendance of all of them together; None if no agent may claim it."""
    to_ask: tuple[Candidate, ...] = ()
    """The agents that get the offer again, or got it."""


@final
@dataclass(slots=True, eq=False)
class NeedReaders(Need[tuple[ReadersSeen, ...]]):
    """Asks for probes of the agents that may claim each of `offers`, in the same order."""

    offers: tuple[OfferedTask, ...]


@final
@dataclass(slots=True, eq=False)
class NeedUndecided(Need[bool]):
    """Asks whether any message about the request stored before `before` is still undecided.

    Someone's time was up then, and a message that was sent in time counts.
    """

    before: int
    """UTC µs."""
    agents: frozenset[AgentName]
    """Agents that may have sent proposals."""
    clients: frozenset[AgentName]
    """Clients that may have sent control messages. Operators are not listed, since any of them may."""


# --- what it appends and shows ----------------------------------------------------------------------


class Stored(NamedTuple):
    event: AnyEvent
    body: bytes
    """Made from `event`."""
    moment: Moment
    """Time and salt of the next event."""


class NotStored(NamedTuple):
    """The event is too large to store."""


NOT_STORED: Final = NotStored()


@final
@dataclass(slots=True, eq=False)
class Append(Need[Stored | NotStored]):
    """Asks to store this event after the head."""

    event: AnyEvent
    command: Command | None
    """The command that the event decides; None for a consequence."""


@final
class Appended(NamedTuple):
    """Tells that the event is in the ledger now."""

    event: AnyEvent
    counts: tuple[Signal, ...]
    """What it tells about agents, for their breakers."""
    command: Command | None
    """As in `Append`."""


@final
class TurnOver(NamedTuple):
    """Tell the turn's agent that `event`, and not its own proposal, ended its turn."""

    event: AnyEvent
    turn: TurnState


@final
class ShowQuestions(NamedTuple):
    """Show a client its open questions.

    This may come more than once, wherever an earlier guard may have died. Of two lists, the one that is
    complete up to the later event is current.
    """

    request: str
    reader: AgentName
    questions: Questions


# --- outcomes -------------------------------------------------------------------------------------


class Decided(NamedTuple):
    """The event that decided a command."""

    event: AnyEvent


class MeshFrozen(NamedTuple):
    """While the whole mesh is frozen, only control messages are decided. The command must be sent again."""


Outcome = Decided | Late | Rejected | MeshFrozen


@final
class Settled(NamedTuple):
    """The decision is over, and nothing more is due."""

    outcome: Outcome | None
    """Outcome of the command; None if there was no command."""
    wake_at: int | None = None
    """Latest UTC µs at which to wake the request; None if it needs no timer."""


Asks = (
    NeedVerdictContext
    | NeedPermit
    | NeedPeers
    | NeedCandidates
    | NeedAttendance
    | NeedReaders
    | NeedUndecided
)
Step = Asks | Append | Appended | TurnOver | ShowQuestions | Settled
