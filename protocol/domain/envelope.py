"""The envelope: what gives an event its id, number, time and place in the chain.

A `World` is everything that a verdict rests on and that is not in the request's own log.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from protocol.domain.ledger import Ledger
from protocol.wire import events
from protocol.wire.config import Policy
from protocol.wire.events import VERSION, Event, Grounds, type_of
from protocol.wire.ids import AgentName, Cause, RequestId, event_id

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
