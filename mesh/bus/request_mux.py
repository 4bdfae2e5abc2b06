"""Request and reply: routes each answer to its call, and reads acknowledgements of stored messages.

Many requests share one inbox, and each answer comes back under its request's number. The inbox's name has 96
random bits: a member that knew it could use it as a reply subject and so forge answers.
"""

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from mesh.bus.nats_protocol import Incoming
from mesh.bus.streams import stream_of
from mesh.errors import (
    ApiCode,
    ApiError,
    Denied,
    Disconnected,
    MeshError,
    NoResponders,
    PublishRefused,
    SequenceConflict,
    StreamFull,
    SubjectTaken,
    TimedOut,
)

_NO_RESPONDERS = 503
_NO_MORE = (204, 404)
"""Statuses that end a series of answers without an error: end of batch, nothing found."""
_SWEEP_S = 0.05
"""Resolution of timeouts."""
_PATIENCE = 12
"""A call for several answers may take this many timeouts in total while answers keep coming. Links may be
slow, and answers to later calls queue behind earlier ones."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A call that waits for one answer, or for several up to a status that ends them."""

    subject: str
    future: asyncio.Future[Any]
    many: list[Incoming] | None
    since: float
    timeout_s: float

    def until(self, last_answer: float) -> float:
        """Return when this call times out. `last_answer` is the time of the latest of several answers."""
        until = self.since + self.timeout_s
        if self.many is None:
            return until
        return min(max(until, last_answer + self.timeout_s), self.since + _PATIENCE * self.timeout_s)

    def take(self, message: Incoming) -> None:
        if self.future.done():
            return
        status = message.status if message.head else 0
        if status == _NO_RESPONDERS and not message.data:
            self.future.set_exception(NoResponders(f"nobody answers on {self.subject}"))
        elif self.many is None:
            self.future.set_result(message)
        elif status in _NO_MORE:
            self.future.set_result(self.many)
        elif status:
            self.future.set_exception(ApiError(self.subject, status, message.description))
        else:
            self.many.append(message)

    def fail(self, error: MeshError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class RequestMux:
    """The calls that wait for an answer. `take` is the sink of the inbox."""

    def __init__(self, prefix: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.inbox = f"{prefix}.{secrets.token_hex(12)}."
        """Prefix of reply subjects, followed by the number."""
        self.requests = 0
        """Requests since the connection was made."""
        self._number = 0
        self._last_answer = 0.0
        """When the latest of several answers came, including late ones (monotonic s)."""
        self._waiting: dict[int, _Waiting] = {}
        self._clock: asyncio.TimerHandle | None = None

    def next_number(self) -> int:
        """Return a new number for one request."""
        self._number += 1
        return self._number

    def beside(self) -> str:
        """Return a new subject outside the inbox, for a stream of answers."""
        return f"{self.inbox.rstrip('.')}-{self.next_number()}"

    def expect(
        self, subject: str, number: int, many: list[Incoming] | None, timeout_s: float
    ) -> asyncio.Future[Any]:
        """Return a future of the answer to a request on `subject`; with `many`, of that list of all answers.

        No answer that comes after this call is missed. The future raises NoResponders, TimedOut, Denied or
        Disconnected. Call `forget` when it is no longer needed.
        """
        self.requests += 1
        future = self._loop.create_future()
        self._waiting[number] = _Waiting(subject, future, many, self._loop.time(), timeout_s)
        if self._clock is None:
            self._clock = self._loop.call_later(min(_SWEEP_S, timeout_s), self._sweep)
        return future

    def forget(self, number: int) -> None:
        self._waiting.pop(number, None)

    def take(self, message: Incoming) -> None:
        """Pass an answer to the call that waits for it; drop it if that call has ended."""
        waiting = self._waiting.get(int(message.subject[len(self.inbox) :]))
        if waiting is None or waiting.many is not None:
            self._last_answer = time.monotonic()
        if waiting is not None:
            waiting.take(message)

    def deny(self, denied: Denied) -> None:
        """Fail every call on a subject that the server denied."""
        for waiting in tuple(self._waiting.values()):
            if waiting.subject == denied.subject:
                waiting.fail(Denied(denied.operation, denied.subject))

    def break_off(self) -> None:
        """Fail every call, because the connection broke."""
        for waiting in tuple(self._waiting.values()):
            waiting.fail(Disconnected(f"the connection broke before {waiting.subject} answered"))

    def _sweep(self) -> None:
        """Fail calls that timed out. One timer serves all, since almost all requests are answered in time."""
        now = self._loop.time()
        for waiting in tuple(self._waiting.values()):
            if waiting.until(self._last_answer) <= now and not waiting.future.done():
                waiting.fail(TimedOut(f"no answer from {waiting.subject} in time"))
        self._clock = self._loop.call_later(_SWEEP_S, self._sweep) if self._waiting else None


# --- JetStream --------------------------------------------------------------------------------------


_LOST = (ApiCode.WRONG_LAST_SEQUENCE, ApiCode.WRONG_LAST_SEQUENCE_CONSTANT)
_FULL = (
    ApiCode.ACCOUNT_RESOURCES_EXCEEDED,
    ApiCode.INSUFFICIENT_RESOURCES,
    ApiCode.STORAGE_RESOURCES_EXCEEDED,
)
_PER_SUBJECT = "per subject"


class PubAck(NamedTuple):
    """The stream and sequence under which JetStream stored a message."""

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
    """Return where a message on `subject` was stored, given the acknowledgement `data`.

    Raises PublishRefused, or a subclass for the reason, if it was not stored, and NoResponders if `data` is
    not an acknowledgement.
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
    if code == ApiCode.STORE_FAILED and _PER_SUBJECT in text:
        return SubjectTaken(subject, code, text)
    if code == ApiCode.STORE_FAILED or code in _FULL:
        return StreamFull(subject, code, text, stream_of(subject))
    return PublishRefused(subject, code, text)
