"""Errors of the bus, the log, provisioning, artifacts, the embedded server and the operator's API.

Their `code` is API; their text is not. `OutcomeUnknown` leaves open if something was done: look before you
act again. After any other error of the bus nothing was done.
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
    """Something between us and the bus."""


class Unreachable(BusError, code="bus.unreachable"):
    """There is no connection to the bus; nothing was sent. Try again later."""


class BadAddress(BusError, code="bus.bad_address"):
    """The address is not the URL of a server. Waiting does not help."""


class TlsFailed(BusError, code="bus.tls"):
    """The connection cannot be secured as it has to be; the text names the cause. Waiting does not help."""


class TlsUnusable(TlsFailed, code="bus.tls_files"):
    """A certificate or key file of ours cannot be used."""


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
    """The message may have taken effect or not: look before you act again."""


class NoResponders(OutcomeUnknown, code="bus.no_responders"):
    """Nobody listens on that subject, or the stream has no leader at the moment."""


class TimedOut(OutcomeUnknown, code="bus.timed_out"):
    """No answer in time."""


class Disconnected(OutcomeUnknown, code="bus.disconnected"):
    """The connection broke while the answer was awaited."""


class ApiCode(IntEnum):
    """Values of `err_code` that mean something here; the names are those of nats-server's errors.json."""

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
    """One code for a full stream and for a subject that holds all it may; only the words differ."""
    WRONG_LAST_SEQUENCE_CONSTANT = 10164
    """Another write of that subject is on its way."""


class ApiError(BusError, code="bus.api_error"):
    """JetStream refused; `err_code` says why, the text does not."""

    def __init__(self, subject: str, err_code: int, description: str) -> None:
        super().__init__(f"{subject}: {description} ({err_code})")
        self.subject = subject
        self.err_code = err_code
        self.description = description


class PublishRefused(ApiError, code="bus.publish_refused"):
    """JetStream did not store the message."""


class StreamFull(PublishRefused, code="bus.stream_full"):
    """The stream, or the store that it lies in, is full. Nothing was stored and nothing is dropped.

    An admin raises the limit (`mesh setup`, or the server's `max_file_store`), and what waits goes on.
    """

    def __init__(self, subject: str, err_code: int, description: str, stream: str) -> None:
        super().__init__(subject, err_code, f"{stream} is full: {description}")
        self.stream = stream


class SubjectTaken(PublishRefused, code="bus.subject_taken"):
    """The subject holds as many messages as it may: somebody wrote it before."""


class SequenceConflict(PublishRefused, code="bus.sequence_conflict"):
    """The compare-and-set was lost: somebody else wrote first. Read again, decide again."""


PASSING = (Unreachable, OutcomeUnknown, StreamFull)
"""Errors that pass by themselves: try again later (after an unknown outcome, look first)."""


# --- the log --------------------------------------------------------------------------------------


class LogUnreadable(MeshError, code="log.unreadable"):
    """A request's events could not be read up to its head; `str(error)` holds numbers only."""

    def __init__(self, request: str, detail: str) -> None:
        super().__init__(f"{request}: {detail}")
        self.request = request


class LogCutShort(MeshError, code="log.cut_short"):
    """The log ends before a place up to which it was read: it was wiped or restored, and is another one."""

    def __init__(self, read: int, last: int) -> None:
        super().__init__(
            f"the log ends at {last}, and was read up to {read}: it was wiped or restored; begin anew"
        )


class BackupUnusable(MeshError, code="backup.unusable"):
    """A folder is no whole backup, or not one of this mesh; the text says which, and what to do."""


class RestoreFailed(MeshError, code="backup.restore_failed"):
    """A restore cannot begin or go on; the text says why. What it wrote is of no use to any service."""


# --- provisioning ---------------------------------------------------------------------------------


class UnsafeChange(MeshError, code="provision.unsafe_change"):
    """A change that would lose data or change what stored data means; an admin must decide it."""

    def __init__(self, what: str, field: str, stands: object, wanted: object) -> None:
        super().__init__(f"{what}: {field} is {stands!r} and cannot safely become {wanted!r}")
        self.field = field


class OtherPartitions(MeshError, code="mesh.other_partitions"):
    """A mesh has another number of partitions than a fleet file or a guard says. It keeps its own for life.

    Args:
        stands: the mesh's number.
        wanted: the other one.
        by: who says it.
    """

    def __init__(self, stands: int, wanted: int, by: str) -> None:
        super().__init__(
            f"this mesh was made with {stands} partitions, and {by} says {wanted}; a mesh keeps its number: "
            f"say `partitions = {stands}` under [guard] in the fleet file and run `mesh setup`, "
            f"or set up a new mesh, on a store of its own"
        )
        self.stands = stands
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
    """False if trying again may help: the turn is retried then, else a person gets it."""


class ArtifactMissing(ArtifactError, code="artifact.missing"):
    """The store holds no such object."""


class ArtifactDigestMismatch(ArtifactError, code="artifact.digest_mismatch"):
    """The bytes are not those that the digest names, or the artifact names two digests."""


class ArtifactForeign(ArtifactError, code="artifact.foreign"):
    """The URI names nothing in the mesh's own store; nothing else is ever read."""


class ArtifactTooLarge(ArtifactError, code="artifact.too_large"):
    """More bytes than the caller takes into memory."""


class ArtifactDenied(ArtifactError, code="artifact.denied"):
    """The store refuses it to the credentials of this process."""


class StoreUnreachable(ArtifactError, code="artifact.store_unreachable"):
    """The store does not answer, or fails in itself. Try again later."""

    permanent: ClassVar[bool] = False


class StoreUnusable(ArtifactError, code="artifact.store_unusable"):
    """There is no such store, or it cannot take what it is given: its name, its bucket, its disk."""


class StoreExtraMissing(StoreUnusable, code="artifact.extra_missing"):
    """The store needs the extra `artifacts`, which is not installed here."""


# --- the embedded server --------------------------------------------------------------------------


class ServerError(MeshError, code="server.error"):
    """The embedded nats-server did not do what was asked; `log` holds its last lines."""

    def __init__(self, text: str, log: tuple[str, ...] = ()) -> None:
        super().__init__("\n".join((text, *log)))
        self.log = log


class ServerMissing(ServerError, code="server.missing"):
    """There is no nats-server binary beside the interpreter or on the PATH."""


class StoreInUse(ServerError, code="server.store_in_use"):
    """Another server holds the store; two on one store would overwrite each other."""


class ServerMisconfigured(ServerError, code="server.misconfigured"):
    """nats-server does not accept its configuration."""


class ServerFailed(ServerError, code="server.failed"):
    """The server ended, or did not become ready in time."""


# --- operators ------------------------------------------------------------------------------------


class UsageWrong(MeshError, code="cli.usage"):
    """The arguments make no sense together, or name something that is not there."""


class NotFound(MeshError, code="cli.not_found"):
    """The name or number is not in the mesh."""


class Impossible(MeshError, code="cli.impossible"):
    """It cannot be done as things stand; the text says why, and what can be done."""


class ControlRefused(MeshError, code="cli.refused"):
    """A control message was not obeyed; `reason` is the notice's code."""

    def __init__(self, request: str, reason: str, detail: str = "") -> None:
        super().__init__(f"{request}: {reason}" + (f": {detail}" if detail else ""))
        self.reason = reason


class ReceiverGone(MeshError, code="webhook.gone"):
    """A webhook's URL answered that it is gone for good (HTTP 410). Posting again does not help."""
