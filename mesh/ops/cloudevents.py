"""Events of the log as CloudEvents 1.0: JSON in structured mode, one a line, the stored event as `data`.

Other systems route by what stands around an event, and need not know the event itself. `partitionkey` and
`sequence` are extensions that CloudEvents documents: a broker that goes by them keeps each request in order.
"""

from typing import Any
from urllib.parse import quote

import msgspec

from mesh.bus.stores import rfc3339
from protocol.wire import codec

TYPES = "handoff-mesh."
"""How the type of each CloudEvent begins. The event's own type follows."""
_SEQUENCE_DIGITS = 10
"""Sequences are compared as text."""


class _Envelope(msgspec.Struct, frozen=True):
    id: str
    request: str
    n: int
    at: int
    type: str


def source_of(fleet: str) -> str:
    """Return the `source` of a fleet's events, a URN."""
    return f"urn:handoff-mesh:{quote(fleet, safe='')}"


def cloud_event(body: bytes, source: str) -> bytes | None:
    """Return a stored event as one line of JSON; None for bytes that are not an event of any version.

    Args:
        source: the URI of the mesh (`source_of`).
    """
    event = codec.readable(body, _Envelope)
    if event is None or not (event.id and event.request and event.type):
        return None
    context: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.id,
        "source": source,
        "type": f"{TYPES}{event.type}",
        "subject": event.request,
        "time": _time(event.at),
        "datacontenttype": "application/json",
        "partitionkey": event.request,
        "sequence": f"{event.n:0{_SEQUENCE_DIGITS}d}",
        "data": msgspec.Raw(body),
    }
    return msgspec.json.encode({name: value for name, value in context.items() if value is not None})


def _time(at_us: int) -> str | None:
    """Return UTC µs as RFC 3339; None for a time outside the calendar, which CloudEvents may leave out."""
    try:
        return rfc3339(at_us)
    except OverflowError:
        return None
