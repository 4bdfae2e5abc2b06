"""What JetStream says of a message that was published to it: where it is stored, or why it is not."""

from typing import NamedTuple

import msgspec

from mesh.bus.conditions import stream_of
from mesh.errors import NoResponders, PublishRefused, StreamFull

_STORE_FAILED = 10077
_PER_SUBJECT = "per subject"
"""JetStream's one code for a full stream and for a subject that holds all it may; only the text differs."""
_FULL = (_STORE_FAILED, 10002, 10023, 10047)
"""Also the account's limits, the server's resources and its storage."""


class PubAck(NamedTuple):
    """Where JetStream stored a message."""

    stream: str
    seq: int


class _Failure(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct, frozen=True):
    stream: str = ""
    seq: int = 0
    error: _Failure | None = None


_ACK = msgspec.json.Decoder(_Ack)


def read_ack(subject: str, data: bytes) -> PubAck:
    """Return where a message on `subject` was stored, as `data` says.

    Raises StreamFull, or PublishRefused with JetStream's err_code, when it was not, and NoResponders when
    `data` is no acknowledgement.
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


def _refused(subject: str, failure: _Failure) -> PublishRefused:
    code, text = failure.err_code, failure.description
    if code not in _FULL or (code == _STORE_FAILED and _PER_SUBJECT in text):
        return PublishRefused(subject, code, text)
    return StreamFull(subject, code, text, stream_of(subject))
