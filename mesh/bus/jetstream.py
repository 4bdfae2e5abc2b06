"""What JetStream answers: its error codes, and where it stored a message or why it did not."""

from enum import IntEnum
from typing import NamedTuple

import msgspec

from mesh.bus.streams import stream_of
from mesh.errors import NoResponders, PublishRefused, SequenceConflict, StreamFull, SubjectTaken


class Code(IntEnum):
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


_LOST = (Code.WRONG_LAST_SEQUENCE, Code.WRONG_LAST_SEQUENCE_CONSTANT)
_FULL = (Code.ACCOUNT_RESOURCES_EXCEEDED, Code.INSUFFICIENT_RESOURCES, Code.STORAGE_RESOURCES_EXCEEDED)
_PER_SUBJECT = "per subject"


class PubAck(NamedTuple):
    """Where JetStream stored a message."""

    stream: str
    seq: int


class ApiFailure(msgspec.Struct, frozen=True):
    """An error in JetStream's answer."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct, frozen=True):
    stream: str = ""
    seq: int = 0
    error: ApiFailure | None = None


_ACK = msgspec.json.Decoder(_Ack)


def read_ack(subject: str, data: bytes) -> PubAck:
    """Return where a message on `subject` was stored, as `data` says.

    Raises PublishRefused, or the subclass that names the reason, when it was not stored, and NoResponders
    when `data` is no acknowledgement.
    """
    try:
        ack = _ACK.decode(data)
    except msgspec.DecodeError:
        raise NoResponders(f"no stream acknowledged {subject}") from None
    if ack.error is not None:
        if not ack.error.err_code:
            raise NoResponders(f"{subject}: {ack.error.description}")
        raise _refused(subject, ack.error)
    if not ack.stream:
        raise NoResponders(f"no stream acknowledged {subject}")
    return PubAck(ack.stream, ack.seq)


def _refused(subject: str, failure: ApiFailure) -> PublishRefused:
    code, text = failure.err_code, failure.description
    if code in _LOST:
        return SequenceConflict(subject, code, text)
    if code == Code.STORE_FAILED and _PER_SUBJECT in text:
        return SubjectTaken(subject, code, text)
    if code == Code.STORE_FAILED or code in _FULL:
        return StreamFull(subject, code, text, stream_of(subject))
    return PublishRefused(subject, code, text)
