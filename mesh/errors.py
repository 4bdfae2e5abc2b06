"""Errors of the bus, the log, provisioning, artifacts, the embedded server and the operator's API.

Their `code` is API; their text is not. `OutcomeUnknown` leaves open if something was done: look before you
act again. After any other error of the bus nothing was done.
"""

from enum import IntEnum
from typing import ClassVar

from protocol.wire.errors import Malformed as Malformed
from protocol.wire.errors import MeshError as MeshError
from protocol.wire.errors import ProtocolError as ProtocolError
from protocol.wire.errors import UnknownEvent as UnknownEvent

# --- the bus --------------------------------------------------------------------------------------


class BusError(MeshError):
    """Something between us and the bus."""

    code: ClassVar[str] = "bus.error"


class Unreachable(BusError):
    """There is no connection to the bus; nothing was sent. Try again later."""

    code: ClassVar[str] = "bus.unreachable"


class BadAddress(BusError):
    """The address is not the URL of a server. Waiting does not help."""

    code: ClassVar[str] = "bus.bad_address"


class TlsFailed(BusError):
    """The connection cannot be secured as it has to be; the text names the cause. Waiting does not help."""

    code: ClassVar[str] = "bus.tls"


class TlsUnusable(TlsFailed):
    """A certificate or key file of ours cannot be used."""

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
    """The message may have taken effect or not: look before you act again."""

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


class ApiCode(IntEnum):
    """Values of `err_code` that mean something here; the names are those of nats-server's errors.json."""

    ACCOUNT_RESOURCES_EXCEEDED = 10002
    CONSUMER_NOT_FOUND = 10014
    INSUFFICIENT_RESOURCES = 10023
    NO_MESSAGE_FOUND = 10037
    STORAGE_RESOURCES_EXCEEDED = 10047
    MESSAGE_EXCEEDS_MAXIMUM = 10054
    STREAM_NOT_FOUND = 10059
    WRONG_LAST_SEQUENCE = 10071
    STORE_FAILED = 10077
    """One code for a full stream and for a subject that holds all it may; only the words differ."""
    WRONG_LAST_SEQUENCE_CONSTANT = 10164
    """Another write of that subject is on its way."""


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


class SequenceConflict(PublishRefused):
    """The compare-and-set was lost: somebody else wrote first. Read again, decide again."""

    code: ClassVar[str] = "bus.sequence_conflict"


PASSING = (Unreachable, OutcomeUnknown, StreamFull)
"""Errors that pass by themselves: try again later (after an unknown outcome, look first)."""


# --- the log --------------------------------------------------------------------------------------


class LogUnreadable(MeshError):
    """A request's events could not be read up to its head; `str(error)` holds numbers only."""

    code: ClassVar[str] = "log.unreadable"

    def __init__(self, request: str, detail: str) -> None:
        super().__init__(f"{request}: {detail}")
        self.request = request


class LogCutShort(MeshError):
    """The log ends before a place up to which it was read: it was wiped or restored, and is another one."""

    code: ClassVar[str] = "log.cut_short"

    def __init__(self, read: int, last: int) -> None:
        super().__init__(
            f"the log ends at {last}, and was read up to {read}: it was wiped or restored; begin anew"
        )


# --- provisioning ---------------------------------------------------------------------------------


class UnsafeChange(MeshError):
    """A change that would lose data or change what stored data means; an admin must decide it."""

    code: ClassVar[str] = "provision.unsafe_change"

    def __init__(self, what: str, field: str, stands: object, wanted: object) -> None:
        super().__init__(f"{what}: {field} is {stands!r} and cannot safely become {wanted!r}")
        self.field = field


class NewerSchema(MeshError):
    """The streams were laid out by a newer version; this one must not touch them."""

    code: ClassVar[str] = "provision.newer_schema"


class StoreTooSmall(MeshError):
    """The server's store has less room than all limits together promise; the streams before are made."""

    code: ClassVar[str] = "provision.store_too_small"


# --- artifacts ------------------------------------------------------------------------------------


class ArtifactError(MeshError):
    """Root of what can be wrong with an artifact or its store.

    `str(error)` goes on the bus and into logs. It names the store, the digest and the store's own short code,
    and never holds what the store answered: that may name keys.
    """

    code: ClassVar[str] = "artifact.error"
    permanent: ClassVar[bool] = True
    """False if trying again may help: the turn is retried then, else a person gets it."""


class ArtifactMissing(ArtifactError):
    """The store holds no such object."""

    code: ClassVar[str] = "artifact.missing"


class ArtifactDigestMismatch(ArtifactError):
    """The bytes are not those that the digest names, or the artifact names two digests."""

    code: ClassVar[str] = "artifact.digest_mismatch"


class ArtifactForeign(ArtifactError):
    """The URI names nothing in the mesh's own store; nothing else is ever read."""

    code: ClassVar[str] = "artifact.foreign"


class ArtifactTooLarge(ArtifactError):
    """More bytes than the caller takes into memory."""

    code: ClassVar[str] = "artifact.too_large"


class ArtifactDenied(ArtifactError):
    """The store refuses it to the credentials of this process."""

    code: ClassVar[str] = "artifact.denied"


class StoreUnreachable(ArtifactError):
    """The store does not answer, or fails in itself. Try again later."""

    code: ClassVar[str] = "artifact.store_unreachable"
    permanent: ClassVar[bool] = False


class StoreUnusable(ArtifactError):
    """There is no such store, or it cannot take what it is given: its name, its bucket, its disk."""

    code: ClassVar[str] = "artifact.store_unusable"


class StoreExtraMissing(StoreUnusable):
    """The store needs the extra `artifacts`, which is not installed here."""

    code: ClassVar[str] = "artifact.extra_missing"


# --- the embedded server --------------------------------------------------------------------------


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


# --- operators ------------------------------------------------------------------------------------


class UsageWrong(MeshError):
    """The arguments make no sense together, or name something that is not there."""

    code: ClassVar[str] = "cli.usage"


class NotFound(MeshError):
    """The name or number is not in the mesh."""

    code: ClassVar[str] = "cli.not_found"


class Impossible(MeshError):
    """It cannot be done as things stand; the text says why, and what can be done."""

    code: ClassVar[str] = "cli.impossible"


class ControlRefused(MeshError):
    """A control message was not obeyed; `reason` is the notice's code."""

    code: ClassVar[str] = "cli.refused"

    def __init__(self, request: str, reason: str, detail: str = "") -> None:
        super().__init__(f"{request}: {reason}" + (f": {detail}" if detail else ""))
        self.reason = reason


class ReceiverGone(MeshError):
    """A webhook's URL answered that it is gone for good (HTTP 410). Posting again does not help."""

    code: ClassVar[str] = "webhook.gone"
