"""The envelope: the one function that gives an event its id, number, time and place in the chain."""

from typing import Any, TypeVar

from msgspec.structs import replace

from protocol.domain.ledger import Ledger
from protocol.domain.world import World
from protocol.wire import events
from protocol.wire.events import VERSION, Event, type_of
from protocol.wire.ids import AgentName, Cause, RequestId, event_id

E = TypeVar("E", bound=Event)
_ENDS = (
    events.RequestCompleted,
    events.RequestFailed,
    events.RequestExpired,
    events.RequestCancelled,
)
"""The ends of a request that was opened."""


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
