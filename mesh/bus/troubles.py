"""What can be the matter with the bus, as a connection meets it: the kinds, and whom a subject concerns."""

from mesh.bus.queues import proposals_of
from mesh.errors import NoResponders, OutcomeUnknown, StreamFull, TimedOut
from mesh.service.conditions import Kind, Troubles

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
    "step": "STEPS",
    "end": "STEPS",
    "timer": "TIMER",
    "conf": "CONF",
    "card": "CARDS",
    "dead": "DEAD",
}


def stream_of(subject: str) -> str:
    """Return the stream that a message on `subject` is stored in or read from; empty for anything else."""
    match subject.split("."):
        case ["mesh", "prop", sender, *_]:
            return proposals_of(sender)
        case ["mesh", kind, _, *_] if kind in _STREAMS:
            return _STREAMS[kind]
        case ["$JS", "API", "DIRECT", "GET", stream, *_] | ["$JS", "API", "STREAM", "MSG", "GET", stream]:
            return stream
        case ["mesh", "api", "STREAM", "MSG", "GET", stream]:
            return stream
    return ""


def met(troubles: Troubles, subject: str, error: OutcomeUnknown | StreamFull) -> None:
    """Note that a call on `subject` came to nothing."""
    stream = stream_of(subject)
    if not stream:
        return  # a question to somebody else, who need not be there
    if isinstance(error, StreamFull):
        troubles.hit(FULL, stream, held=subject)
    elif isinstance(error, NoResponders):
        troubles.hit(ABSENT, stream, held=subject)
    elif isinstance(error, TimedOut):
        troubles.hit(SILENT, held=subject, stream=stream)
    else:
        troubles.hold(DISCONNECTED, held=subject)


def answered(troubles: Troubles, subject: str) -> None:
    """Note that a call on `subject` was answered."""
    stream = stream_of(subject)
    if stream:
        troubles.well(SILENT)
        troubles.well(ABSENT, stream)


def stored(troubles: Troubles, subject: str) -> None:
    """Note that a message on `subject` was stored."""
    troubles.well(FULL, stream_of(subject))
