"""The conditions of a connection to the bus: their kinds, and the stream that a subject belongs to."""

from mesh.bus.streams import proposals_of, steps_of
from mesh.errors import NoResponders, OutcomeUnknown, StreamFull, TimedOut
from mesh.service.conditions import Conditions, Kind

DISCONNECTED = Kind(
    "bus_disconnected", "bus_reconnected", "no connection to the bus", settle_s=1.0, lasts=True
)
NOT_SECURED = Kind(
    "bus_not_secured", "bus_secured", "the connection to the bus cannot be secured by TLS", lasts=True
)
FULL = Kind("stream_full", "stream_has_room", "{} is full")
ABSENT = Kind("nobody_answers", "somebody_answers", "nobody answers for {}")
SILENT = Kind("bus_slow", "bus_quick_again", "the bus does not answer in time", settle_s=7.0)
"""It settles later than a request times out: a disk that is stuck lets some through, too."""
NO_FLEET = Kind("fleet_missing", "fleet_found", "there is no fleet yet: run `mesh setup`")
UNREADABLE = Kind("entry_unreadable", "entry_readable", "{} cannot be read: run `mesh doctor`", lasts=True)
PULL_REFUSED = Kind("pull_refused", "pull_accepted", "the bus does not take pulls ({})")
NO_DELIVERY = Kind(
    "no_delivery", "only_deliveries", "what is no delivery of {} came to its inbox", blocks=False
)
PULL_SILENT = Kind("pull_silent", "pull_heard", "nothing is heard of pulls", settle_s=10.0)

_STREAMS = {
    "ctl": "CTL",
    "evt": "LOG",
    "end": "ENDS",
    "timer": "TIMER",
    "conf": "CONF",
    "card": "CARDS",
    "rate": "RATES",
    "dead": "DEAD",
}


def stream_of(subject: str) -> str:
    """Return the stream that a message on `subject` is stored in or read from; empty for anything else."""
    match subject.split("."):
        case ["mesh", "prop", sender, *_]:
            return proposals_of(sender)
        case ["mesh", "step", agent, *_]:
            return steps_of(agent)
        case ["mesh", kind, _, *_] if kind in _STREAMS:
            return _STREAMS[kind]
        case ["$JS", "API", "DIRECT", "GET", stream, *_] | ["$JS", "API", "STREAM", "MSG", "GET", stream]:
            return stream
        case ["mesh", "api", "STREAM", "MSG", "GET", stream]:
            return stream
    return ""


def failed(conditions: Conditions, subject: str, error: OutcomeUnknown | StreamFull) -> None:
    """Raise the condition that a failed call on `subject` shows."""
    stream = stream_of(subject)
    if not stream:
        return  # a question to somebody else, who need not be there
    if isinstance(error, StreamFull):
        conditions.raise_(FULL, stream, held=subject)
    elif isinstance(error, NoResponders):
        conditions.raise_(ABSENT, stream, held=subject)
    elif isinstance(error, TimedOut):
        conditions.raise_(SILENT, held=subject, stream=stream)
    else:
        conditions.hold(DISCONNECTED, held=subject)


def answered(conditions: Conditions, subject: str) -> None:
    """Clear the conditions that an answer on `subject` disproves."""
    stream = stream_of(subject)
    if stream:
        conditions.clear(SILENT)
        conditions.clear(ABSENT, stream)


def stored(conditions: Conditions, subject: str) -> None:
    """Clear "full": a message on `subject` was stored."""
    conditions.clear(FULL, stream_of(subject))
