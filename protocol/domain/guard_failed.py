"""The end of a request on which a guard itself fails: its code raised, or a verdict took too long.

What failed would fail again on every message of the request, on its cancel and its expiry, too. So this end
is built from the first event and the head alone, and shares no code with what failed.
"""

from protocol.domain.envelope import World
from protocol.wire.events import VERSION, AnyEvent, RequestFailed, RequestOpened, type_of
from protocol.wire.ids import AgentName, TurnId, due_cause, event_id

GUARD_FAILED = "guard_failed"
"""The code of such an end; also of the dead letter of the message that the guard failed on."""
_REASON = "the guard itself failed on this request; its log says where"


def guard_failed(opened: RequestOpened, head: AnyEvent, prev: str, world: World) -> RequestFailed:
    """Return the event that ends a request on which a guard fails.

    Args:
        opened: the event that began it.
        head: its newest event.
        prev: the digest of the head's stored bytes.
    """
    type_ = type_of(RequestFailed)
    cause = due_cause(opened.request, GUARD_FAILED, "", head.n)
    return RequestFailed(
        v=VERSION,
        id=event_id(cause, type_, 0),
        request=opened.request,
        n=head.n + 1,
        at=max(world.now, head.at),
        cause=cause,
        prev=prev,
        salt=world.salt,
        to=AgentName(opened.client),
        trace=world.trace,
        turn=TurnId(""),
        round=0,
        code=GUARD_FAILED,
        reason=_REASON,
        digest=opened.digest,
    )


def is_guard_failed(event: AnyEvent) -> bool:
    """Return True for such an end. An agent's own move `fail` may name any code, but it has a sender."""
    return isinstance(event, RequestFailed) and event.code == GUARD_FAILED and event.sender is None
