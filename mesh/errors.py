"""Errors of the bus, the log, provisioning, artifacts, the embedded server and the operator's API.

Their `code` is API; their text is not. `OutcomeUnknown` leaves open whether something was done: check before
you act again. After any other error of the bus nothing was done.
"""

from enum import IntEnum
from typing import ClassVar

from protocol.wire.errors import Malformed as Malformed
from protocol.wire.errors import MeshError as MeshError
from protocol.wire.errors import OldForm as OldForm
from protocol.wire.errors import ProtocolError as ProtocolError
from protocol.wire.errors import UnknownEvent as UnknownEvent


class ExportInvalid(Malformed, code="export.invalid"):
    """A file is no export of a log; the text names the file and the line."""


# --- the bus --------------------------------------------------------------------------------------


class BusError(MeshError, code="bus.error"):
    """Root of the errors between us and the bus."""


class Unreachable(BusError, code="bus.unreachable"):
    """There is no connection to the bus; nothing was sent. Try again later."""


class BadAddress(BusError, code="bus.bad_address"):
    """The address is not the URL of a server. Waiting does not help."""


class TlsFailed(BusError, code="bus.tls"):
    """The connection cannot be secured as required; the text names the cause. Waiting does not help."""


class TlsUnusable(TlsFailed, code="bus.tls_files"):
    """One of our certificate or key files cannot be used."""


class AuthenticationFailed(BusError, code="bus.authentication"):
    """The bus does not know these credentials. Trying again does not help."""


class Denied(BusError, code="bus.denied"):
    """The role may not publish or subscribe there. Trying again does not help."""

    def __init__(self, operation: str, subject: str) -> None:
        super().__init__(f"not allowed to {operation} {subject}")
        self.operation = operation
        self.subject = subject


class TooLarge(BusError, code="bus.too_large"):
    """A message over the server's `max_payload`; nothing was sent."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes, the bus takes {limit}")
        self.size = size
        self.limit = limit


class OutcomeUnknown(BusError, code="bus.outcome_unknown"):
    """The message may or may not have taken effect: check before you act again."""


class NoResponders(OutcomeUnknown, code="bus.no_responders"):
    """No client listens on that subject, or the stream has no leader at the moment."""


class TimedOut(OutcomeUnknown, code="bus.timed_out"):
    """No answer in time."""


class Disconnected(OutcomeUnknown, code="bus.disconnected"):
    """The connection broke while the answer was awaited."""


class ApiCode(IntEnum):
    """Values of `err_code` that matter here; the names are those of nats-server's errors.json."""

    ACCOUNT_RESOURCES_EXCEEDED = 10002
    CLUSTER_NOT_AVAILABLE = 10008
    CONSUMER_NOT_FOUND = 10014
    INSUFFICIENT_RESOURCES = 10023
    NO_MESSAGE_FOUND = 10037
    STORAGE_RESOURCES_EXCEEDED = 10047
    MESSAGE_EXCEEDS_MAXIMUM = 10054
    STREAM_NOT_FOUND = 10059
    WRONG_LAST_SEQUENCE = 10071
    STORE_FAILED = 10077
    """One code for a full stream and for a full subject; only the texts differ."""
    WRONG_LAST_SEQUENCE_CONSTANT = 10164
    """Another write to that subject is under way."""


class ApiError(BusError, code="bus.api_error"):
    """JetStream refused; `err_code` tells why, the text does not."""

    def __init__(self, subject: str, err_code: int, description: str) -> None:
        super().__init__(f"{subject}: {description} ({err_code})")
        self.subject = subject
        self.err_code = err_code
        self.description = description


class PublishRefused(ApiError, code="bus.publish_refused"):
    """JetStream did not store the message."""


class StreamFull(PublishRefused, code="bus.stream_full"):
    """The stream, or the store that it is in, is full. Nothing was stored and nothing is dropped.

    An admin raises the limit (`mesh setup`, or the server's `max_file_store`), and what waits continues.
    """

    def __init__(self, subject: str, err_code: int, description: str, stream: str) -> None:
        super().__init__(subject, err_code, f"{stream} is full: {description}")
        self.stream = stream


class SubjectTaken(PublishRefused, code="bus.subject_taken"):
    """The subject holds as many messages as it may: another write came first."""


class SequenceConflict(PublishRefused, code="bus.sequence_conflict"):
    """The compare-and-set was lost: another write came first. Read again, decide again."""


PASSING = (Unreachable, OutcomeUnknown, StreamFull)
"""Errors that pass by themselves: try again later (after an unknown outcome, check first)."""


# --- the log --------------------------------------------------------------------------------------


class LogUnreadable(MeshError, code="log.unreadable"):
    """A request's events could not be read up to its head; `str(error)` holds numbers only."""

    def __init__(self, request: str, detail: str) -> None:
        super().__init__(f"{request}: {detail}")
        self.request = request


class LogCutShort(MeshError, code="log.cut_short"):
    """The log ends before a place up to which it was read: it was wiped or restored, and is another log."""

    def __init__(self, read: int, last: int) -> None:
        super().__init__(
            f"the log ends at {last}, and was read up to {read}: it was wiped or restored; begin anew"
        )


class BackupUnusable(MeshError, code="backup.unusable"):
    """A folder is not a complete backup, or not one of this mesh; the text tells which, and what to do."""


class RestoreFailed(MeshError, code="backup.restore_failed"):
    """A restore cannot begin or continue; the text tells why. What it wrote is of no use to any service."""


class ArchiveUnusable(MeshError, code="archive.unusable"):
    """An archive is damaged, of another mesh or log, or newer than this build; the text tells which."""


# --- provisioning ---------------------------------------------------------------------------------


class UnsafeChange(MeshError, code="provision.unsafe_change"):
    """A change that would lose data or change the meaning of stored data; an admin must decide it."""

    def __init__(self, what: str, field: str, current: object, wanted: object) -> None:
        super().__init__(f"{what}: {field} is {current!r} and cannot safely become {wanted!r}")
        self.field = field


class OtherPartitions(MeshError, code="mesh.other_partitions"):
    """A mesh has another number of partitions than a fleet file or a guard. It keeps its number for life.

    Args:
        current: the mesh's number.
        wanted: the other number.
        by: who gives it.
    """

    def __init__(self, current: int, wanted: int, by: str) -> None:
        super().__init__(
            f"this mesh was made with {current} partitions, and {by} says {wanted}; a mesh keeps its number: "
            f"say `partitions = {current}` under [guard] in the fleet file and run `mesh setup`, "
            f"or set up a new mesh, on a store of its own"
        )
        self.current = current
        self.wanted = wanted


class NewerSchema(MeshError, code="provision.newer_schema"):
    """The streams were laid out by a newer version; this one must not touch them."""


class StoreTooSmall(MeshError, code="provision.store_too_small"):
    """The server's store has less room than all limits together promise; the streams before are made."""


# --- artifacts ------------------------------------------------------------------------------------


class ArtifactError(MeshError, code="artifact.error"):
    """Root of what can be wrong with an artifact or its store.

    `str(error)` goes on the bus and into logs. It names the store, the digest and the store's own short code,
    and never holds what the store answered: that may name keys.
    """

    permanent: ClassVar[bool] = True
    """False if trying again may help: the turn is then retried, else a person gets it."""


class ArtifactMissing(ArtifactError, code="artifact.missing"):
    """The store holds no such object."""


class ArtifactDigestMismatch(ArtifactError, code="artifact.digest_mismatch"):
    """The bytes are not those that the digest names, or the artifact names two digests."""


class ArtifactForeign(ArtifactError, code="artifact.foreign"):
    """The URI names nothing in the mesh's own store; nothing else is ever read."""


class ArtifactTooLarge(ArtifactError, code="artifact.too_large"):
    """More bytes than the caller accepts in memory."""


class ArtifactDenied(ArtifactError, code="artifact.denied"):
    """The store refuses it to the credentials of this process."""


class StoreUnreachable(ArtifactError, code="artifact.store_unreachable"):
    """The store does not answer, or has an internal error. Try again later."""

    permanent: ClassVar[bool] = False


class StoreUnusable(ArtifactError, code="artifact.store_unusable"):
    """There is no such store, or it cannot store the data: because of its name, its bucket, its disk."""


class StoreExtraMissing(StoreUnusable, code="artifact.extra_missing"):
    """The store needs the extra `artifacts`, which is not installed here."""


# --- the embedded server --------------------------------------------------------------------------


class ServerError(MeshError, code="server.error"):
    """The embedded nats-server did not do what was asked; `log` holds its last lines."""

    def __init__(self, text: str, log: tuple[str, ...] = ()) -> None:
        super().__init__("\n".join((text, *log)))
        self.log = log


class ServerMissing(ServerError, code="server.missing"):
    """There is no nats-server binary next to the interpreter or on the PATH."""


class StoreInUse(ServerError, code="server.store_in_use"):
    """Another server holds the store; two on one store would overwrite each other."""


class ServerMisconfigured(ServerError, code="server.misconfigured"):
    """nats-server does not accept its configuration."""


class ServerFailed(ServerError, code="server.failed"):
    """The server ended, or did not become ready in time."""


# --- operators ------------------------------------------------------------------------------------


class UsageWrong(MeshError, code="cli.usage"):
    """The arguments make no sense together, or name something that does not exist."""


class NotFound(MeshError, code="cli.not_found"):
    """The name or number is not in the mesh."""


class Impossible(MeshError, code="cli.impossible"):
    """It cannot be done in the current state; the text tells why, and what can be done."""


class ControlRefused(MeshError, code="cli.refused"):
    """A control message was not obeyed; `reason` is the notice's code."""

    def __init__(self, request: str, reason: str, detail: str = "") -> None:
        super().__init__(f"{request}: {reason}" + (f": {detail}" if detail else ""))
        self.reason = reason


class ReceiverGone(MeshError, code="webhook.gone"):
    """A webhook's URL answered that it is gone for good (HTTP 410). Posting again does not help."""
