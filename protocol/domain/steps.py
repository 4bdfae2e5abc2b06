"""The steps of a decision: what the decider needs, what it appends, and the outcome of a command.

Each step is answered by its caller, as its docstring says. `Steps` is the decider's side of it.
"""

from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from protocol.domain.admission import Late, Rejected
from protocol.domain.breaker import Count, Use
from protocol.domain.turns import TurnState
from protocol.wire.commands import Command
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent, RequestCompleted
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName, Cause
from protocol.wire.records import MemoryRecord

T = TypeVar("T")
_CLOSED = Use("closed")

# --- what it needs --------------------------------------------------------------------------------


class NeedMoment(NamedTuple):
    """Answered by a `Moment`."""


class Moment(NamedTuple):
    """When an event is written."""

    now: int
    """UTC µs."""
    salt: str
    """32 hex digits, fresh for every event."""


class NeedVerdictContext(NamedTuple):
    """What a verdict needs besides the ledger and the fleet. Answered by a `VerdictContext`."""

    command: Command
    target: AgentName | None
    """The agent whose breaker counts; None if the command gives no agent of the fleet any work."""
    may_try: bool
    """True if the command may take the trial of a breaker that is open."""


class VerdictContext(NamedTuple):
    breaker: Use = _CLOSED
    """Of the target."""
    policy: Policy | None = None
    """For a submit: the policy that it names; None if there is none of that name."""
    prices: Mapping[str, Any] | None = None
    """For a submit: what models cost, by id."""
    memory: tuple[Fact, ...] = ()
    """For a submit with a conversation: what that remembers."""


class NeedPeers(NamedTuple):
    """Answered by those of `agents` whose breakers are closed, as a tuple in the same order."""

    agents: tuple[AgentName, ...]


class NeedCandidates(NamedTuple):
    """Who could have a plan's tasks. Answered by an `AgentStanding` for each of `agents`, in that order."""

    agents: tuple[AgentName, ...]
    trial: Cause
    """The cause that a trial of a breaker goes by: the plan's tasks are opened by it."""


class AgentStanding(NamedTuple):
    """How an agent stands for new work."""

    breaker: Use = _CLOSED
    """Half open: what the plan gives this agent is the trial."""
    served: bool = True


class NeedAttendance(NamedTuple):
    """Answered by an `Attendance`: the time of this turn's round may be up."""

    turn: TurnState


class Attendance(NamedTuple):
    """How an agent was seen to be served, as a round of it needs it."""

    served: bool
    since: int
    """UTC µs since when `served` is as it is. While it is true: no earlier than the round left the queue, or
    than the queue last moved if the round is still in it."""
    unbegun: bool
    """True if the round has lain in the inbox until now, and nothing of it is in the journals."""


NeedContext = NeedMoment | NeedVerdictContext | NeedPeers | NeedCandidates | NeedAttendance


# --- what follows ---------------------------------------------------------------------------------


class Append(NamedTuple):
    """Store this event behind the head. Answered by `Stored`, or None if the event is too large to store."""

    event: AnyEvent
    command: Command | None
    """The command that the event decides; None for a consequence."""


class Stored(NamedTuple):
    event: AnyEvent
    body: bytes
    """Made from `event`."""


class Appended(NamedTuple):
    """The event is in the ledger now. Answered by nothing."""

    event: AnyEvent
    counts: tuple[Count, ...]
    """What it says of agents; for their breakers."""
    command: Command | None
    """As in `Append`."""


class TurnOver(NamedTuple):
    """Tell the turn's agent that `event` ended its turn; its own proposal did not. Answered by nothing."""

    event: AnyEvent
    turn: TurnState


class Remember(NamedTuple):
    """Have the conversation of the completed request remember `facts`. Answered by nothing.

    It may come more than once: it is yielded again wherever the guard that appended the end may have died.
    """

    event: RequestCompleted
    conversation: str
    facts: tuple[Fact, ...]

    @property
    def records(self) -> tuple[MemoryRecord, ...]:
        """What is written, one record a fact."""
        at, request = self.event.at, self.event.request
        return tuple(
            MemoryRecord(conversation=self.conversation, key=fact.key, fact=fact, at=at, request=request)
            for fact in self.facts
        )


class WakeAt(NamedTuple):
    """Wake the request at this time at the latest. Answered by nothing."""

    at: int
    """UTC µs."""


Step = NeedContext | Append | Appended | TurnOver | Remember | WakeAt


# --- what comes of a command ----------------------------------------------------------------------


class Decided(NamedTuple):
    """The event that decided a command."""

    event: AnyEvent


class MeshFrozen(NamedTuple):
    """Only control messages are decided while the whole mesh is frozen: the command has to come again."""


Outcome = Decided | Late | Rejected | MeshFrozen
Steps = Generator[Step, Any, T]
NEED_MOMENT: Final = NeedMoment()
