"""Drafts of events: the envelope, and what the event shows to its reader.

The envelope has the event's id, number, time and place in the chain. What the reader may not see goes into a
`facts.withheld` event, which is in no inbox and comes before the event that it belongs to. A guard that dies
between the two has decided nothing: the next guard writes the second, or both again.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, NamedTuple, TypedDict

import msgspec
from msgspec.structs import replace

from protocol.domain import budget
from protocol.domain.carried import Carried, divide
from protocol.domain.ledger import Ledger
from protocol.domain.steps import ClientUse
from protocol.domain.turns import NO_REPORT, TurnState
from protocol.wire.codec import equal
from protocol.wire.commands import ForkedFrom, Report, Usage
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.event import VERSION, Event
from protocol.wire.event_parts import Assignment, Continued, Grounds, RoundOutcome, TaskResult, Withheld
from protocol.wire.events import FactsWithheld, type_of
from protocol.wire.freeze import Span
from protocol.wire.handoff import Fact, Handoff
from protocol.wire.ids import HUMAN, NOBODY, AgentName, Cause, EventId, RequestId, TurnId, due_cause, event_id
from protocol.wire.moves import Move


class World(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`Grounds`, and what an event shows in other fields: its time, its salt, the documents it embeds."""

    now: int
    """UTC µs, not before the head's."""
    salt: str
    """96 random bits as text, fresh for every event."""
    grounds: Grounds = Grounds()
    policy: Policy | None = None
    """Submits: the named policy; None if there is no such policy."""
    prices: Mapping[str, Any] | None = None
    """Submits: prices of the fleet's models, which the request keeps."""
    memory: tuple[Fact, ...] = ()
    """Submits: what the conversation remembers."""
    continued: Continued | None = None
    """Submits: how they went on with the agent that spoke last in the conversation; None if they did not."""
    use: ClientUse | None = None
    """Submits: how much of the log the sender uses; None if that is not counted. It is in no event."""
    trace: str = ""
    """W3C `traceparent` of the deciding span; empty without tracing. No verdict depends on it."""


class HandoffView(NamedTuple):
    """A handoff as one reader sees it."""

    handoff: Handoff
    withheld: Withheld | None
    """What the reader may know about the hidden part."""
    hidden: Carried
    """What the reader does not see."""


_NO_GROUNDS = Grounds()
MOST_TOLD: Final = 100
"""Most holders that an end tells its client, the newest: it has to fit into an event."""


class Envelope(TypedDict):
    """The fields of every event. An event's own fields are passed by keyword, so they are type-checked."""

    v: Literal[2]
    id: EventId
    request: RequestId
    n: int
    at: int
    cause: Cause
    prev: str
    salt: str
    to: AgentName
    trace: str
    stood: tuple[Span, ...]


class EndTold(TypedDict):
    """The fields of an end that tell its client how the request was worked on."""

    usage: Usage | None
    path: tuple[AgentName, ...]


class Opening(NamedTuple):
    """The envelope and the assignment of an event that opens a turn."""

    envelope: Envelope
    work: Assignment


class Draft:
    """The next event of a request, for one cause."""

    __slots__ = ("cause", "ledger", "request", "world")

    def __init__(self, ledger: Ledger, world: World, cause: Cause, request: str | None = None) -> None:
        self.ledger, self.world, self.cause = ledger, world, cause
        self.request = RequestId(request or str(ledger.request))

    def envelope(self, kind: type[Event], to: str, id_: EventId | None = None) -> Envelope:
        """Return the envelope of an event of this kind, in the inbox of `to`."""
        ledger, world = self.ledger, self.world
        return Envelope(
            v=VERSION,
            id=id_ or self._id(kind),
            request=self.request,
            n=ledger.n,
            at=world.now,
            cause=self.cause,
            prev=ledger.prev,
            salt=world.salt,
            to=AgentName(to),
            trace=world.trace,
            stood=ledger.not_noted(),
        )

    def opening(
        self,
        kind: type[Event],
        handoff: Handoff,
        carried: Carried,
        *,
        path: tuple[AgentName, ...],
        depth: int = 0,
        seal: int = 0,
        round_: int = 0,
        past: tuple[RoundOutcome, ...] = (),
        continues: TurnId | None = None,
        reader: AgentEntry | None = None,
        results: tuple[TaskResult, ...] = (),
        task: str = "",
        turn: TurnId | None = None,
        policy: Policy | None = None,
        prices: Mapping[str, Any] | None = None,
        forked_from: ForkedFrom | None = None,
    ) -> Opening | FactsWithheld:
        """Begin an event that opens a turn, or return the `facts.withheld` that must come first.

        A `facts.withheld` precedes every handoff that its reader may not see completely, and no other. People
        are cleared for everything: they read the log.

        Args:
            handoff: the whole handoff, with nothing withheld.
            carried: everything that it carries.
            seal: index in `path` of the lowest holder that work may still go back to.
            reader: the reader's entry in the fleet; by default the target in the grounds.
            results: results that a task gets to use, as its reader may see them.
            turn: the id of the turn and of the event, if it is already known.
            policy: by default the request's; likewise `prices` and `forked_from`.
        """
        target = reader or self.world.grounds.target
        clearance = None if handoff.to_agent == HUMAN or target is None else target.clearance
        shown, withheld, hidden = show(handoff, carried, clearance)
        first = None
        if withheld is not None or self.ledger.kept_back(self.cause) is not None:
            facts, artifacts = hidden.fact_tuple, hidden.artifact_tuple
            envelope = self.envelope(FactsWithheld, NOBODY)
            first = self._unless_kept(
                FactsWithheld(**envelope, target=handoff.to_agent, facts=facts, artifacts=artifacts)
            )
        if first is not None:
            return first
        id_, policy = EventId(turn or self._id(kind)), policy or self.ledger.policy  # the event's own id
        work = Assignment(
            turn=TurnId(id_),
            round=round_,
            handoff=shown,
            path=path,
            depth=depth,
            withheld=withheld,
            past=past,
            continues=continues,
            prices=self.ledger.prices if prices is None else prices,
            topology=policy.topology,
            task=task,
            results=results,
            board=self.ledger.board_for(clearance) if self.ledger.board else (),
            timeout_s=policy.turn_timeout_s,
            forked_from=self.ledger.record_for(handoff.to_agent, forked_from),
            seal=seal,
        )
        return Opening(self.envelope(kind, handoff.to_agent, id_), work)

    def withhold_from_client(
        self,
        to: str = "",
        *,
        report: Report = NO_REPORT,
        move: Move | None = None,
        facts: tuple[Fact, ...] = (),
    ) -> FactsWithheld | None:
        """Return the `facts.withheld` that must precede a question or an end; None if nothing is withheld.

        Args:
            to: the reader; by default the client.
            report: what the agent reported with its move.
            move: the move itself, if the event does not contain it.
            facts: what the conversation will remember, or what a refusal of the submit depends on.
        """
        grounds = self.world.grounds
        tells_nothing = report == NO_REPORT and grounds == _NO_GROUNDS and move is None and not facts
        if tells_nothing and self.ledger.kept_back(self.cause) is None:
            return None
        envelope, target = self.envelope(FactsWithheld, NOBODY), AgentName(to or str(self.ledger.client))
        return self._unless_kept(
            FactsWithheld(**envelope, target=target, facts=facts, report=report, grounds=grounds, move=move)
        )

    def told(self, turn: TurnState | None = None, report: Report = NO_REPORT) -> EndTold:
        """Return what an end tells the client of cost and path, as far as the policy allows.

        Args:
            turn: the turn whose proposal ends the request.
            report: what that turn reports with it.
        """
        ledger = self.ledger
        usage, path = None, tuple[AgentName, ...]()
        if "usage" in ledger.policy.tell_client:
            usage = ledger.spent if turn is None else budget.plus(ledger.spent, ledger.more(turn, report))
        if "path" in ledger.policy.tell_client:
            holders = [each.agent for each in ledger.turns.values() if each.task is None]
            path = tuple(holders[-MOST_TOLD:])
        return EndTold(usage=usage, path=path)

    def _unless_kept(self, first: FactsWithheld) -> FactsWithheld | None:
        """Return the event that must come first; None if it is in the log already.

        The one in the log may be from a dead guard and a different verdict. It belongs to this verdict only
        if its content is identical. Otherwise another one follows it, even if that is empty.
        """
        stored = self.ledger.kept_back(self.cause)
        if stored is None:
            return first
        same = replace(first, **{name: getattr(stored, name) for name in Envelope.__annotations__})
        return None if same == stored and equal(same, stored) else first

    def _id(self, kind: type[Event]) -> EventId:
        type_ = type_of(kind)
        return event_id(self.cause, type_, self.ledger.count(self.cause, type_))


def due_draft(kind: type[Event], ledger: Ledger, world: World, about: str, n: int) -> Draft:
    """Return the draft of a consequence; `n` is the number of the event that led to it."""
    return Draft(ledger, world, due_cause(str(ledger.request), type_of(kind), about, n))


def show(handoff: Handoff, carried: Carried, clearance: Collection[str] | None) -> HandoffView:
    """Return a handoff as its reader sees it.

    Args:
        handoff: the whole handoff, with everything that it carries.
        carried: the same content, by name.
        clearance: the reader's; None: for everything.
    """
    shown, hidden, withheld = divide(carried, clearance)
    if withheld is not None:
        handoff = replace(handoff, facts=shown.fact_tuple, artifacts=shown.artifact_tuple)
    return HandoffView(handoff, withheld, hidden)


_TRACE_ID = slice(3, 35)
"""The trace id within a `traceparent`."""


def trace_of(current: str, incoming: str) -> str:
    """Return the parent `traceparent` for work on a request: the message's, unless it is of another trace.

    Commands of people and messages of strangers have their own traces; the request stays in one.

    Args:
        current: from the request's newest event; empty if it has none.
        incoming: from the message that is answered; well-formed or empty.
    """
    is_same = not current or incoming[_TRACE_ID] == current[_TRACE_ID]
    return incoming if incoming and is_same else current
