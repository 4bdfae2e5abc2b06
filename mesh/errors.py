"""Errors of the bus and of the runtime. Their `code` is API; their text is not.

    MeshError                              (protocol.wire.errors)
    ├── BusError
    │   ├── Unreachable                    not connected: nothing was sent
    │   ├── BadAddress                     the server's URL is none
    │   ├── TlsFailed                      the connection cannot be secured
    │   │   └── TlsUnusable                certificates or keys of ours cannot be used
    │   ├── AuthenticationFailed           the bus does not know these credentials
    │   ├── Denied                         the bus knows them, and they may not do this
    │   ├── TooLarge                       more bytes than the bus takes: nothing was sent
    │   ├── OutcomeUnknown                 it was sent, and nobody said what became of it
    │   │   ├── NoResponders               nobody listens there, or nobody leads at the moment
    │   │   ├── TimedOut                   no answer in time
    │   │   └── Disconnected               the connection broke before the answer
    │   └── ApiError                       JetStream answered with an error
    │       └── PublishRefused             JetStream did not store a message, and says why
    │           ├── StreamFull             there is no room for it: an admin has to make some
    │           ├── SubjectTaken           its subject holds all that it may: somebody wrote it before
    │           └── WrongLastSequence      the compare-and-set was lost: somebody else wrote first
    ├── LogError
    │   ├── SequenceConflict               somebody else appended first: read again, decide again
    │   ├── LogUnreadable                  a request's events do not add up
    │   └── LogCutShort                    the log ends before what was read of it: it is another one
    ├── ProvisionError
    │   ├── UnsafeChange                   would lose data or change what stored data means
    │   ├── NewerSchema                    laid out by a newer version of this software
    │   └── StoreTooSmall                  the server has less room than the limits promise
    ├── ServerError
    │   ├── ServerMissing                  no nats-server binary
    │   ├── StoreInUse                     another server works on that store
    │   ├── ServerMisconfigured            nats-server does not accept the configuration
    │   └── ServerFailed                   it ended, or did not become ready
    ├── UsageWrong                         an operator asked for what makes no sense
    ├── NotFound                           there is no such request, event, letter …
    ├── Impossible                         it is there, and this cannot be done to it as things stand
    └── ControlRefused                     the guard did not do what a person asked

Whoever catches `OutcomeUnknown` must look before it acts again. `Unreachable`, `Denied`, `TooLarge` and
`ApiError` are certain: nothing was done.
"""

from typing import ClassVar

from protocol.wire.errors import Malformed, MeshError, ProtocolError, UnknownEvent


class BusError(MeshError):
    """Something between us and the bus."""

    code: ClassVar[str] = "bus.error"


class Unreachable(BusError):
    """There is no connection to the bus; nothing was sent. Try again later."""

    code: ClassVar[str] = "bus.unreachable"


class BadAddress(BusError):
    """What should be the URL of a server is none: no waiting will help."""

    code: ClassVar[str] = "bus.bad_address"


class TlsFailed(BusError):
    """The connection cannot be secured as it has to be; the text names the cause. Waiting does not help."""

    code: ClassVar[str] = "bus.tls"


class TlsUnusable(TlsFailed):
    """A file that the connection should be secured with cannot be used."""

    code: ClassVar[str] = "bus.tls_files"


class AuthenticationFailed(BusError):
    """The bus does not know these credentials. Trying again does not help."""

    code: ClassVar[str] = "bus.authentication"


class Denied(BusError):
    """The role may not publish or subscribe there. Trying again does not help."""

    code: ClassVar[str] = "bus.denied"

    def __init__(self, operation: str, subject: str) -> None:
        super().__init__(f"not allowed to {operation} {subject}")
        self.operation = operation
        self.subject = subject


class TooLarge(BusError):
    """A message over the server's `max_payload`; nothing was sent."""

    code: ClassVar[str] = "bus.too_large"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes, the bus takes {limit}")
        self.size = size
        self.limit = limit


class OutcomeUnknown(BusError):
    """What was sent may have been done or not: look before acting again."""

    code: ClassVar[str] = "bus.outcome_unknown"


class NoResponders(OutcomeUnknown):
    """Nobody listens on that subject, or the stream has no leader at the moment."""

    code: ClassVar[str] = "bus.no_responders"


class TimedOut(OutcomeUnknown):
    """No answer in time."""

    code: ClassVar[str] = "bus.timed_out"


class Disconnected(OutcomeUnknown):
    """The connection broke while the answer was awaited."""

    code: ClassVar[str] = "bus.disconnected"


class ApiError(BusError):
    """JetStream refused; `err_code` says why, the text does not."""

    code: ClassVar[str] = "bus.api_error"

    def __init__(self, subject: str, err_code: int, description: str) -> None:
        super().__init__(f"{subject}: {description} ({err_code})")
        self.subject = subject
        self.err_code = err_code
        self.description = description


class PublishRefused(ApiError):
    """JetStream did not store the message."""

    code: ClassVar[str] = "bus.publish_refused"


class StreamFull(PublishRefused):
    """The stream, or the store that it lies in, is full. Nothing was stored and nothing is dropped.

    An admin raises the limit (`mesh setup`, or the server's `max_file_store`), and what waits goes on.
    """

    code: ClassVar[str] = "bus.stream_full"

    def __init__(self, subject: str, err_code: int, description: str, stream: str) -> None:
        super().__init__(subject, err_code, f"{stream} is full: {description}")
        self.stream = stream


class SubjectTaken(PublishRefused):
    """The subject holds as many messages as it may: somebody wrote it before."""

    code: ClassVar[str] = "bus.subject_taken"


class WrongLastSequence(PublishRefused):
    """The compare-and-set was lost: somebody else wrote first, or writes at this moment."""

    code: ClassVar[str] = "bus.wrong_last_sequence"


PASSING = (Unreachable, OutcomeUnknown, StreamFull)
"""What passes without a change of what was asked: try again later (after an unknown outcome, look first)."""


class LogError(MeshError):
    """Something about the log of events."""

    code: ClassVar[str] = "log.error"


class SequenceConflict(LogError):
    """The request's head is not where the caller believed it: read it again, decide again."""

    code: ClassVar[str] = "log.sequence_conflict"

    def __init__(self, request: str, after: int) -> None:
        super().__init__(f"the head of {request} is not {after}")
        self.request = request
        self.after = after


class LogUnreadable(LogError):
    """A request's events could not be read up to its head; `str(error)` holds numbers only."""

    code: ClassVar[str] = "log.unreadable"

    def __init__(self, request: str, detail: str) -> None:
        super().__init__(f"{request}: {detail}")
        self.request = request


class LogCutShort(LogError):
    """The log ends before a place up to which it was read: it was wiped or restored, and is another one."""

    code: ClassVar[str] = "log.cut_short"

    def __init__(self, read: int, last: int) -> None:
        super().__init__(
            f"the log ends at {last}, and was read up to {read}: it was wiped or restored; begin anew"
        )
        self.read = read
        self.last = last


class ProvisionError(MeshError):
    """Streams and consumers are not, and were not made, what they should be."""

    code: ClassVar[str] = "provision.error"


class UnsafeChange(ProvisionError):
    """A change that would lose data or change what stored data means; an admin must decide it."""

    code: ClassVar[str] = "provision.unsafe_change"

    def __init__(self, what: str, field: str, stands: object, wanted: object) -> None:
        super().__init__(f"{what}: {field} is {stands!r} and cannot safely become {wanted!r}")
        self.what = what
        self.field = field
        self.stands = stands
        self.wanted = wanted


class NewerSchema(ProvisionError):
    """The streams were laid out by a newer version; this one must not touch them."""

    code: ClassVar[str] = "provision.newer_schema"

    def __init__(self, what: str, found: int, known: int) -> None:
        super().__init__(f"{what} has schema {found}, this version knows {known}")
        self.found = found
        self.known = known


class StoreTooSmall(ProvisionError):
    """The server's store has less room than all limits together promise; the streams before are made."""

    code: ClassVar[str] = "provision.store_too_small"

    def __init__(self, what: str, max_bytes: int) -> None:
        super().__init__(
            f"{what} may take {max_bytes} bytes, and the server's store has no room left to promise them: "
            "give the server a larger store (max_file_store), or lower mib and steps_mib under [limits] "
            "in the fleet file"
        )
        self.what = what
        self.max_bytes = max_bytes


class ServerError(MeshError):
    """The embedded nats-server did not do what was asked; `log` holds its last lines."""

    code: ClassVar[str] = "server.error"

    def __init__(self, text: str, log: tuple[str, ...] = ()) -> None:
        super().__init__("\n".join((text, *log)))
        self.log = log


class ServerMissing(ServerError):
    """There is no nats-server binary beside the interpreter or on the PATH."""

    code: ClassVar[str] = "server.missing"


class StoreInUse(ServerError):
    """Another server holds the store; two on one store would overwrite each other."""

    code: ClassVar[str] = "server.store_in_use"


class ServerMisconfigured(ServerError):
    """nats-server does not accept its configuration."""

    code: ClassVar[str] = "server.misconfigured"


class ServerFailed(ServerError):
    """The server ended, or did not become ready in time."""

    code: ClassVar[str] = "server.failed"


# --- what operators ask for -----------------------------------------------------------------------


class UsageWrong(MeshError):
    """The arguments make no sense together, or name something that is not there."""

    code: ClassVar[str] = "cli.usage"


class NotFound(MeshError):
    """What was asked for by name or number is not in the mesh."""

    code: ClassVar[str] = "cli.not_found"


class Impossible(MeshError):
    """What was asked for cannot be done as things stand; the text says why, and what can be."""

    code: ClassVar[str] = "cli.impossible"


class ControlRefused(MeshError):
    """A control message was not obeyed; `reason` is the notice's code."""

    code: ClassVar[str] = "cli.refused"

    def __init__(self, request: str, reason: str, detail: str = "") -> None:
        super().__init__(f"{request}: {reason}" + (f": {detail}" if detail else ""))
        self.reason = reason


__all__ = [
    "PASSING",
    "ApiError",
    "AuthenticationFailed",
    "BadAddress",
    "BusError",
    "ControlRefused",
    "Denied",
    "Disconnected",
    "Impossible",
    "LogCutShort",
    "LogError",
    "LogUnreadable",
    "Malformed",
    "MeshError",
    "NewerSchema",
    "NoResponders",
    "NotFound",
    "OutcomeUnknown",
    "ProtocolError",
    "ProvisionError",
    "PublishRefused",
    "SequenceConflict",
    "ServerError",
    "ServerFailed",
    "ServerMisconfigured",
    "ServerMissing",
    "StoreInUse",
    "StoreTooSmall",
    "StreamFull",
    "SubjectTaken",
    "TimedOut",
    "TlsFailed",
    "TlsUnusable",
    "TooLarge",
    "UnknownEvent",
    "Unreachable",
    "UnsafeChange",
    "UsageWrong",
    "WrongLastSequence",
]
