"""The steps of a decision: what it needs, what it appends, whom to tell, and what came of it.

A decision says in plain values what is next (`OpenDecision.next`). A step that is a `Need` gets its answer by
`supply`, of the type that it names; then the decision goes on.
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
    """When an event is written."""

    now: int
    """UTC µs."""
    salt: str
    """96 random bits as text, fresh for every event."""


# --- what it needs --------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Need(Generic[A]):
    """Something that a decision cannot know by itself. It goes on once this has an answer."""

    answer: A | None = field(default=None, init=False)

    def supply(self, answer: A) -> None:
        self.answer = answer


class ClientUse(NamedTuple):
    """What a client has of the log, and may have."""

    open_requests: int
    spent_bytes: float
    """Of an hour's worth, how much is used up; more than that if requests under way overdrew it."""
    quota: Quota


class VerdictContext(NamedTuple):
    """What a verdict rests on besides the ledger and the fleet."""

    breaker: Permit = _CLOSED
    """Of the target."""
    policy: Policy | None = None
    """For a submit: the policy that it names; None if there is none of that name."""
    prices: Mapping[str, Any] | None = None
    """For a submit: what models cost, by id."""
    memory: tuple[Fact, ...] = ()
    """For a submit with a conversation: what that remembers."""
    use: ClientUse | None = None
    """For a submit: what its sender has of the log; None if nobody counts."""


@final
@dataclass(slots=True, eq=False)
class NeedVerdictContext(Need[VerdictContext]):
    """Asks what the verdict on a command rests on."""

    command: Command
    target: AgentName | None
    """The agent whose breaker counts; None if the command gives no agent of the fleet any work."""
    may_try: bool
    """True if the command may take the trial of a breaker that is open."""


@final
@dataclass(slots=True, eq=False)
class NeedPeers(Need[tuple[AgentName, ...]]):
    """Asks which of `agents` have a closed breaker, in the same order."""

    agents: tuple[AgentName, ...]


class AgentStanding(NamedTuple):
    """How an agent stands for new work."""

    breaker: Permit = _CLOSED
    """Half open: what the plan gives this agent is the trial."""
    served: bool = True


@final
@dataclass(slots=True, eq=False)
class NeedCandidates(Need[tuple[AgentStanding, ...]]):
    """Asks how each of `agents` stands, in the same order: they could have a plan's tasks."""

    agents: tuple[AgentName, ...]
    trial: Cause
    """The cause that a trial of a breaker goes by: the plan's tasks are opened by it."""


class Reader(NamedTuple):
    """How an agent was seen that may claim an offer."""

    served: bool
    since: int
    """UTC µs since when `served` is as it is."""
    breaker: BreakerState = "closed"
    took: bool = False
    """True if it took the offer out of its own inbox."""


class Attendance(NamedTuple):
    """How an agent was seen to be served, as a round of it needs it."""

    served: bool
    since: int
    """UTC µs since when `served` is as it is. While it is true: no earlier than the round left the queue, or
    than the queue last moved if the round is still in it."""
    unbegun: bool
    """True if the round has lain in the inbox until now, and nothing of it is in the journals."""

    @classmethod
    def of_any(cls, seen: Collection[Reader]) -> "Attendance":
        """Return how any of several agents is served.

        The span of a service by several begins with the one that is served longest now: who was served
        before it may be forgotten.
        """
        since = [one.since for one in seen if one.served]
        return cls(bool(since), min(since) if since else max(one.since for one in seen), unbegun=False)

    def within(self, grounds: Grounds, *, removed: bool) -> Grounds:
        """Return the grounds with what was seen of one agent."""
        served, since, unbegun = self
        return replace(grounds, served=served, served_since=since, unbegun=unbegun, removed=removed)


@final
@dataclass(slots=True, eq=False)
class NeedAttendance(Need[tuple[Attendance, ...]]):
    """Asks how the agent of each of `turns` is served, in the same order: the time of its round may be up."""

    turns: tuple[TurnState, ...]


class OfferedTask(NamedTuple):
    """An offer whose time may be up."""

    task: TaskState
    entries: tuple[AgentEntry, ...]
    """Who may claim it, as the fleet file has them; empty if nobody may."""


class ReadersSeen(NamedTuple):
    """How those were seen who may claim an offer. `swarm.readers_seen` makes it."""

    attendance: Attendance | None
    """Of any of them; None if nobody may claim it."""
    to_ask: tuple[Candidate, ...] = ()
    """To whom the offer goes again, or went."""


@final
@dataclass(slots=True, eq=False)
class NeedReaders(Need[tuple[ReadersSeen, ...]]):
    """Asks how those are seen who may claim each of `offers`, in the same order."""

    offers: tuple[OfferedTask, ...]


@final
@dataclass(slots=True, eq=False)
class NeedUnheard(Need[bool]):
    """Asks whether a message about the request that was stored before `before` is still to be decided.

    Somebody's time was up then, and what they said in time counts.
    """

    before: int
    """UTC µs."""
    agents: frozenset[AgentName]
    """Those who may have sent proposals."""
    clients: frozenset[AgentName]
    """Those who may have sent control messages, operators left out: each of them may."""


# --- what follows ---------------------------------------------------------------------------------


class Stored(NamedTuple):
    event: AnyEvent
    body: bytes
    """Made from `event`."""
    moment: Moment
    """When the next event is written."""


class NotStored(NamedTuple):
    """The event is too large to store."""


NOT_STORED: Final = NotStored()


@final
@dataclass(slots=True, eq=False)
class Append(Need[Stored | NotStored]):
    """Asks to store this event behind the head."""

    event: AnyEvent
    command: Command | None
    """The command that the event decides; None for a consequence."""


@final
class Appended(NamedTuple):
    """The event is in the ledger now."""

    event: AnyEvent
    counts: tuple[Signal, ...]
    """What it says of agents; for their breakers."""
    command: Command | None
    """As in `Append`."""


@final
class TurnOver(NamedTuple):
    """Tell the turn's agent that `event` ended its turn; its own proposal did not."""

    event: AnyEvent
    turn: TurnState


@final
class ShowQuestions(NamedTuple):
    """Show a client what waits for its reply.

    It may come more than once: wherever the guard before may have died. A list that is known up to a later
    event is the current one.
    """

    request: str
    reader: AgentName
    questions: Questions


# --- what comes of a command ----------------------------------------------------------------------


class Decided(NamedTuple):
    """The event that decided a command."""

    event: AnyEvent


class MeshFrozen(NamedTuple):
    """Only control messages are decided while the whole mesh is frozen: the command has to come again."""


Outcome = Decided | Late | Rejected | MeshFrozen


@final
class Settled(NamedTuple):
    """The decision is over, and nothing more is due."""

    outcome: Outcome | None
    """What came of the command; None if there was none."""
    wake_at: int | None = None
    """When the request has to be woken at the latest, UTC µs; None if no timer is needed."""


Asks = NeedVerdictContext | NeedPeers | NeedCandidates | NeedAttendance | NeedReaders | NeedUnheard
Step = Asks | Append | Appended | TurnOver | ShowQuestions | Settled
