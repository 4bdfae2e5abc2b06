"""An event being written: its envelope, and what it shows its reader.

The envelope is its id, number, time and place in the chain. What the reader may not see stands in a
`facts.withheld`, addressed to nobody, before the event that it belongs to. A guard that dies between the two
has decided nothing: the next one writes the second, or both again.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from protocol.domain.layers import Load, Marks, divide
from protocol.domain.ledger import Ledger
from protocol.wire import events
from protocol.wire.codec import equal
from protocol.wire.commands import Move, Report
from protocol.wire.config import Policy
from protocol.wire.events import VERSION, Beneath, Event, FactsWithheld, Grounds, Withheld, type_of
from protocol.wire.handoff import Fact, Handoff
from protocol.wire.ids import HUMAN, NOBODY, AgentName, Cause, RequestId, event_id

E = TypeVar("E", bound=Event)
_ENDS = (
    events.RequestCompleted,
    events.RequestFailed,
    events.RequestExpired,
    events.RequestCancelled,
)
"""The ends of a request that was opened."""


class World(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`Grounds`, and what an event shows elsewhere: its time, its salt, the documents it embeds."""

    now: int
    """UTC µs, not before the head's."""
    salt: str
    """32 hex digits, fresh for every event."""
    grounds: Grounds = Grounds()
    policy: Policy | None = None
    """For a submit: the policy it names; None if there is none of that name."""
    prices: Mapping[str, Any] | None = None
    """For a submit: prices of the fleet's models, which the request keeps."""
    trace: str = ""
    """W3C `traceparent` of the span that decides; empty where nothing is traced. No verdict rests on it."""


def stamp(
    kind: type[E], ledger: Ledger, world: World, cause: str, to: str, request: str, **payload: Any
) -> E:
    """Return the next event of `ledger`: `payload` with its envelope, in the inbox of `to`.

    The work that it gives, if any, says what models cost when the request began; an end says which
    submit it answers.
    """
    type_ = type_of(kind)
    work = payload.get("work")
    if work is not None:
        payload["work"] = replace(work, prices=payload.get("prices", ledger.prices))
    if issubclass(kind, _ENDS):
        payload["digest"] = ledger.submit_digest
    at = world.now if ledger.head is None else max(world.now, ledger.head.at)
    return kind(
        v=VERSION,
        id=event_id(cause, type_, ledger.count(cause, type_)),
        request=RequestId(request),
        n=ledger.n,
        at=at,
        cause=Cause(cause),
        prev=ledger.prev,
        salt=world.salt,
        to=AgentName(to),
        trace=world.trace,
        **payload,
    )


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


class HandoffView(NamedTuple):
    """A handoff as one reader sees it."""

    handoff: Handoff
    withheld: Withheld | None
    """What the reader may be told of what it does not see."""
    rest: Beneath
    """Every layer of what the reader does not see the whole of."""

    @property
    def beneath(self) -> Beneath | None:
        """What its work says of the layers beneath, if it may see them all."""
        return self.rest if self.withheld is None and self.rest != Beneath() else None


def show(handoff: Handoff, load: Load, marks: Marks, clearance: Collection[str] | None) -> HandoffView:
    """Return a handoff as its reader sees it.

    Args:
        load: all that it carries.
        marks: what of it must be carried.
        clearance: the reader's; None: for everything.
    """
    divided = divide(load, clearance)
    must_carry = tuple(
        key
        for key, fact in divided.facts.items()
        if any(load.facts[key][place] is fact for name, place in marks if name == key)
    )
    rest: list[Fact] = []
    places: list[int] = []
    for key, layers in divided.rest.facts.items():
        places += sorted(len(rest) + place for name, place in marks if name == key)
        rest += layers
    shown = replace(
        handoff,
        facts=tuple(divided.facts.values()),
        artifacts=tuple(divided.artifacts.values()),
        constraints=replace(handoff.constraints, must_carry=must_carry),
    )
    items = tuple(item for layers in divided.rest.artifacts.values() for item in layers)
    kept = Beneath(facts=tuple(rest), artifacts=items, must_carry=tuple(places))
    return HandoffView(shown, divided.withheld, kept)


def place(
    ledger: Ledger,
    world: World,
    cause: Cause,
    handoff: Handoff,
    load: Load,
    marks: Marks,
    request: str = "",
) -> HandoffView | FactsWithheld:
    """Return the handoff as its reader may see it, or the event that first has to keep the rest.

    `facts.withheld` comes before every handoff of which the reader may not see a part, and before no other:
    whether it comes tells nobody under which keys something is withheld. People are cleared for everything:
    who reads the `human` queue reads the log.
    """
    target = world.grounds.target
    cleared = handoff.to_agent == HUMAN or target is None
    shown = show(handoff, load, marks, None if cleared or target is None else target.clearance)
    rest, kept = shown.rest, ledger.kept_back(cause)
    is_kept = kept is not None and equal(
        (kept.facts, kept.artifacts, kept.must_carry), (rest.facts, rest.artifacts, rest.must_carry)
    )
    if is_kept or (kept is None and shown.withheld is None):
        return shown
    return stamp(
        FactsWithheld,
        ledger,
        world,
        cause,
        NOBODY,
        request or str(ledger.request),
        target=handoff.to_agent,
        facts=rest.facts,
        artifacts=rest.artifacts,
        must_carry=rest.must_carry,
    )


def for_client(
    kind: type[E],
    ledger: Ledger,
    world: World,
    cause: Cause,
    to: str,
    request: str,
    *,
    report: Report = Report(),  # noqa: B008  # it is immutable
    move: Move | None = None,
    **payload: Any,
) -> E | FactsWithheld:
    """Return a question or an end, or the event that first has to keep what its reader is not told.

    Args:
        report: what the agent reported with the move that led to it.
        move: the move itself, where `payload` does not say it.
    """
    kept = ledger.kept_back(cause)
    told = (Report(), Grounds(), None) if kept is None else (kept.report, kept.grounds, kept.move)
    if equal(told, (report, world.grounds, move)):
        return stamp(kind, ledger, world, cause, to, request, **payload)
    return stamp(
        FactsWithheld,
        ledger,
        world,
        cause,
        NOBODY,
        request,
        target=to,
        report=report,
        grounds=world.grounds,
        move=move,
    )
