"""The steps of a decision: what the decider needs, what it appends, and the outcome of a command.

Each step is answered by its caller, as its docstring says. `Steps` is the decider's side of it.
"""

from collections.abc import Collection, Generator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from protocol.domain.admission import Late, Rejected
from protocol.domain.breaker import Count, Use
from protocol.domain.turns import TurnState
from protocol.wire.commands import Command
from protocol.wire.config import BreakerState, Policy, Quota
from protocol.wire.event_parts import Grounds
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName, Cause
from protocol.wire.records import Questions

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
    """96 random bits as text, fresh for every event."""


class NeedVerdictContext(NamedTuple):
    """What a verdict needs besides the ledger and the fleet. Answered by a `VerdictContext`."""

    command: Command
    target: AgentName | None
    """The agent whose breaker counts; None if the command gives no agent of the fleet any work."""
    may_try: bool
    """True if the command may take the trial of a breaker that is open."""


class ClientUse(NamedTuple):
    """What a client has of the log, and may have."""

    open_requests: int
    spent_bytes: float
    """Of an hour's worth, how much is used up; more than that if requests under way overdrew it."""
    quota: Quota


class VerdictContext(NamedTuple):
    breaker: Use = _CLOSED
    """Of the target."""
    policy: Policy | None = None
    """For a submit: the policy that it names; None if there is none of that name."""
    prices: Mapping[str, Any] | None = None
    """For a submit: what models cost, by id."""
    memory: tuple[Fact, ...] = ()
    """For a submit with a conversation: what that remembers."""
    use: ClientUse | None = None
    """For a submit: what its sender has of the log; None if nobody counts."""


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


class NeedReaders(NamedTuple):
    """The time to claim an offer may be up. Answered by a `Reader` for each of `agents`, in that order."""

    agents: tuple[AgentName, ...]
    """Those that may claim it, one at least."""
    copies: Mapping[AgentName, int]
    """Who has the offer in its own inbox, by the number of the event."""


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
        """Return the grounds with what a look found of one agent."""
        served, since, unbegun = self
        return replace(grounds, served=served, served_since=since, unbegun=unbegun, removed=removed)


class NeedUnheard(NamedTuple):
    """Answered by True if a message about the request that was stored before `before` is still to be decided.

    Somebody's time was up then, and what they said in time counts.
    """

    before: int
    """UTC µs."""
    agents: frozenset[AgentName]
    """Those who may have sent proposals."""
    clients: frozenset[AgentName]
    """Those who may have sent control messages, operators left out: each of them may."""


NeedContext = (
    NeedMoment | NeedVerdictContext | NeedPeers | NeedCandidates | NeedAttendance | NeedReaders | NeedUnheard
)


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


class ShowQuestions(NamedTuple):
    """Show a client what waits for its reply. Answered by nothing.

    It may come more than once: it is yielded again wherever the guard before may have died. A list that is
    known up to a later event stands.
    """

    request: str
    reader: AgentName
    questions: Questions


class WakeAt(NamedTuple):
    """Wake the request at this time at the latest. Answered by nothing."""

    at: int
    """UTC µs."""


Step = NeedContext | Append | Appended | TurnOver | ShowQuestions | WakeAt


# --- what comes of a command ----------------------------------------------------------------------


class Decided(NamedTuple):
    """The event that decided a command."""

    event: AnyEvent


class MeshFrozen(NamedTuple):
    """Only control messages are decided while the whole mesh is frozen: the command has to come again."""


Outcome = Decided | Late | Rejected | MeshFrozen
Steps = Generator[Step, Any, T]
NEED_MOMENT: Final = NeedMoment()
