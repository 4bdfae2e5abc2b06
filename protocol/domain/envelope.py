"""An event being written: its envelope, and what it shows its reader.

The envelope is its id, number, time and place in the chain. What the reader may not see stands in a
`facts.withheld`, addressed to nobody, before the event that it belongs to. A guard that dies between the two
has decided nothing: the next one writes the second, or both again.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from protocol.domain.carried import Carried, divide
from protocol.domain.ledger import Ledger
from protocol.domain.steps import ClientUse
from protocol.wire.codec import equal
from protocol.wire.commands import Report
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.event_parts import Assignment, Grounds, RoundOutcome, TaskResult, Withheld
from protocol.wire.events import VERSION, Ended, Event, FactsWithheld, type_of
from protocol.wire.handoff import Fact, Handoff
from protocol.wire.ids import HUMAN, NOBODY, AgentName, Cause, EventId, RequestId, TurnId, due_cause, event_id
from protocol.wire.moves import Move

E = TypeVar("E", bound=Event)
_NOTHING_TOLD = {"report": Report(), "grounds": Grounds(), "move": None, "facts": ()}
_NOTHING_KEPT = _NOTHING_TOLD | {"grounds": None, "artifacts": ()}
"""What `facts.withheld` says by default."""
_ENDS = Ended.__args__


class World(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`Grounds`, and what an event shows elsewhere: its time, its salt, the documents it embeds."""

    now: int
    """UTC µs, not before the head's."""
    salt: str
    """96 random bits as text, fresh for every event."""
    grounds: Grounds = Grounds()
    policy: Policy | None = None
    """For a submit: the policy it names; None if there is none of that name."""
    prices: Mapping[str, Any] | None = None
    """For a submit: prices of the fleet's models, which the request keeps."""
    memory: tuple[Fact, ...] = ()
    """For a submit: what its conversation remembers."""
    use: ClientUse | None = None
    """For a submit: what its sender has of the log; None if nobody counts. No event rests on it."""
    trace: str = ""
    """W3C `traceparent` of the span that decides; empty where nothing is traced. No verdict rests on it."""


class HandoffView(NamedTuple):
    """A handoff as one reader sees it."""

    handoff: Handoff
    withheld: Withheld | None
    """What the reader may be told of what it does not see."""
    hidden: Carried
    """What the reader does not see."""


class Draft:
    """The next event of a request, as it follows from one cause."""

    __slots__ = ("cause", "ledger", "request", "world")

    def __init__(self, ledger: Ledger, world: World, cause: Cause, request: str | None = None) -> None:
        self.ledger, self.world, self.cause = ledger, world, cause
        self.request = RequestId(request or str(ledger.request))

    def event(self, kind: type[E], to: str, **payload: Any) -> E:
        """Return the event: `payload` with its envelope, in the inbox of `to`. An end names its submit."""
        ledger, world = self.ledger, self.world
        if kind in _ENDS:
            payload.setdefault("digest", ledger.submit_digest)
        return kind(
            v=VERSION,
            id=payload.pop("id", None) or self._id(kind),
            request=self.request,
            n=ledger.n,
            at=world.now,
            cause=self.cause,
            prev=ledger.prev,
            salt=world.salt,
            to=AgentName(to),
            trace=world.trace,
            stood=ledger.not_noted(),
            **payload,
        )

    def opening(
        self,
        kind: type[E],
        handoff: Handoff,
        carried: Carried,
        *,
        path: tuple[AgentName, ...],
        depth: int = 0,
        round_: int = 0,
        past: tuple[RoundOutcome, ...] = (),
        continues: TurnId | None = None,
        remembered: Collection[str] = (),
        reader: AgentEntry | None = None,
        results: tuple[TaskResult, ...] = (),
        **payload: Any,
    ) -> E | FactsWithheld:
        """Return an event that opens a turn, or the one that first has to keep what is not shown.

        `facts.withheld` comes before every handoff of which the reader may not see a part, and before no
        other. People are cleared for everything: they read the log.

        Args:
            handoff: the whole, nothing withheld.
            carried: all that it carries.
            remembered: keys of the facts that the request's conversation remembers.
            reader: as the fleet file has them; by default the target of the grounds.
            results: those that a task is given to use, as its reader may see them.
        """
        target = reader or self.world.grounds.target
        clearance = None if handoff.to_agent == HUMAN or target is None else target.clearance
        shown, withheld, hidden = show(handoff, carried, clearance)
        keeps = {"facts": hidden.fact_tuple, "artifacts": hidden.artifact_tuple}
        first = self._keeping(handoff.to_agent, keeps, is_needed=withheld is not None)
        if first is not None:
            return first
        if remembered:
            payload["remembered"] = tuple(sorted(remembered))
        turn = payload.pop("id", None) or self._id(kind)  # the event's own id
        policy = payload.get("policy", self.ledger.policy)
        work = Assignment(
            turn=TurnId(turn),
            round=round_,
            handoff=shown,
            path=path,
            depth=depth,
            withheld=withheld,
            past=past,
            continues=continues,
            prices=payload.get("prices", self.ledger.prices),
            topology=policy.topology,
            task=payload.get("name", ""),
            results=results,
            board=self.ledger.board_for(clearance) if self.ledger.board else (),
            timeout_s=policy.turn_timeout_s,
        )
        return self.event(kind, handoff.to_agent, id=turn, work=work, **payload)

    def for_client(
        self,
        kind: type[E],
        to: str = "",
        *,
        report: Report = Report(),  # noqa: B008  # it is immutable
        move: Move | None = None,
        facts: tuple[Fact, ...] = (),
        **payload: Any,
    ) -> E | FactsWithheld:
        """Return a question or an end, or the event that first has to keep what its reader is not told.

        Args:
            to: the reader; by default the client.
            report: what the agent reported with the move that led to it.
            move: the move itself, where `payload` does not say it.
            facts: what the conversation is to remember, or what a refusal of the submit rests on.
        """
        to, grounds = to or str(self.ledger.client), self.world.grounds
        keeps = {"report": report, "grounds": grounds, "move": move, "facts": facts}
        is_nothing = keeps == _NOTHING_TOLD and equal(keeps, _NOTHING_TOLD)
        first = self._keeping(to, keeps, is_needed=not is_nothing)
        return self.event(kind, to, **payload) if first is None else first

    def _keeping(self, target: str, keeps: dict[str, Any], *, is_needed: bool) -> FactsWithheld | None:
        """Return the event that has to come first, or None if it stands in the log or none is needed.

        One that stands there may be a dead guard's, of another verdict. It is this one's only if it says the
        very same; else it is followed by another, even by an empty one.
        """
        kept = self.ledger.kept_back(self.cause)
        if kept is None and not is_needed:
            return None
        if kept is not None and kept.target == target:
            wanted = _NOTHING_KEPT | keeps
            told = {name: getattr(kept, name) for name in wanted}
            if told == wanted and equal(told, wanted):
                return None
        return self.event(FactsWithheld, NOBODY, target=target, **keeps)

    def _id(self, kind: type[Event]) -> EventId:
        type_ = type_of(kind)
        return event_id(self.cause, type_, self.ledger.count(self.cause, type_))


def due_draft(kind: type[Event], ledger: Ledger, world: World, about: str, n: int) -> Draft:
    """Return the draft of a consequence: `n` is the number of the event that it follows from."""
    return Draft(ledger, world, due_cause(str(ledger.request), type_of(kind), about, n))


def show(handoff: Handoff, carried: Carried, clearance: Collection[str] | None) -> HandoffView:
    """Return a handoff as its reader sees it.

    Args:
        handoff: the whole: with all that it carries.
        carried: the same, by name.
        clearance: the reader's; None: for everything.
    """
    shown, hidden, withheld = divide(carried, clearance)
    if withheld is not None:
        handoff = replace(handoff, facts=shown.fact_tuple, artifacts=shown.artifact_tuple)
    return HandoffView(handoff, withheld, hidden)


_TRACE_ID = slice(3, 35)
"""Of a `traceparent`."""


def trace_of(known: str, came: str) -> str:
    """Return the `traceparent` that work on a request comes from: the message's, unless of another trace.

    A person's command and a stranger's message have traces of their own; the request keeps its one.

    Args:
        known: of the request's newest event; empty if it has none.
        came: of the message that is answered; well-formed or empty.
    """
    return came if came and (not known or came[_TRACE_ID] == known[_TRACE_ID]) else known
