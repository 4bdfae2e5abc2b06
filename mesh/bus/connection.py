"""One connection to the bus, in our own words: request, publish, subscribe, and typed errors.

What was sent once is never sent again behind the caller's back: without a connection a call fails at once
(`Unreachable`), and when the connection breaks, every answer still awaited becomes `Disconnected`. All
answers to requests come in through one subscription. Inboxes' names hold 96 random bits, because whoever
knew one could name it as a reply subject and so put words into the bus's mouth.
"""

import asyncio
import contextlib
import secrets
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
import structlog
from nats import errors as nats_errors
from nats.aio.subscription import Subscription as NatsSubscription

from mesh.bus import troubles
from mesh.bus.roles import API, OUTSIDE_API, inbox_prefix
from mesh.bus.wire import Incoming, Sink, Wire, encode
from mesh.errors import (
    PASSING,
    ApiError,
    AuthenticationFailed,
    BusError,
    Denied,
    Disconnected,
    MeshError,
    NoResponders,
    OutcomeUnknown,
    PublishRefused,
    StreamFull,
    TimedOut,
    TooLarge,
    Unreachable,
)
from mesh.trouble import Troubles

_log = structlog.get_logger(__name__)

T = TypeVar("T")

TIMEOUT_S = 5.0
_NO_RESPONDERS = 503
_STORE_FAILED = 10077
_PER_SUBJECT = "per subject"
"""JetStream's one code for a full stream and for a subject that holds all it may; only the text differs."""
_FULL = (_STORE_FAILED, 10002, 10023, 10047)
"""Also the account's limits, the server's resources and its storage."""
_CLOSE_S = 1.0
"""How long closing waits for what is unsent; a server that hangs would take it never."""
_RETRY_S = (0.1, 0.2, 0.5, 1.0, 2.0)
_HEADER_ROOM = 2048
_SWEEP_S = 0.05
"""How exactly timeouts are kept."""


class PubAck(NamedTuple):
    """Where JetStream stored a message."""

    stream: str
    seq: int


class Counters(msgspec.Struct):
    """What a connection did since it was made."""

    requests: int = 0
    timeouts: int = 0
    denied: int = 0
    disconnects: int = 0
    in_messages: int = 0
    out_messages: int = 0


class _Failure(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct, frozen=True):
    stream: str = ""
    seq: int = 0
    error: _Failure | None = None


_ACK = msgspec.json.Decoder(_Ack)


class _Waiting:
    """Somebody who awaits one answer, or several until a status ends them."""

    __slots__ = ("future", "many", "subject", "until")

    def __init__(
        self, subject: str, future: asyncio.Future[Any], many: list[Incoming] | None, until: float
    ) -> None:
        self.subject = subject
        self.future = future
        self.many = many
        self.until = until

    def take(self, message: Incoming) -> None:
        if self.future.done():
            return
        if message.head and message.status == _NO_RESPONDERS and not message.data:
            self.future.set_exception(NoResponders(f"nobody answers on {self.subject}"))
        elif self.many is None:
            self.future.set_result(message)
        elif message.head and message.status:
            self.future.set_result(self.many)
        else:
            self.many.append(message)

    def fail(self, error: MeshError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Subscription:
    """A subscription that the server has confirmed."""

    def __init__(self, bus: "Bus", inner: NatsSubscription, subject: str) -> None:
        self._bus = bus
        self._inner = inner
        self.subject = subject

    async def close(self) -> None:
        """End it; what the server sent before it knew still reaches the sink. Idempotent."""
        await self._bus._unsubscribe(self._inner)


class Bus:
    """A connection. Made by `connect`; `async with` closes it."""

    def __init__(self, name: str, prefix: str) -> None:
        self.name = name
        self.inbox = f"{prefix}.{secrets.token_hex(12)}."
        self.denials: deque[Denied] = deque(maxlen=100)
        """The latest refusals of the server, also of messages that nobody awaited an answer to."""
        self._wire = Wire(self._on_denied)
        self._counters = Counters()
        self._api = API
        self._number = 0
        self._waiting: dict[int, _Waiting] = {}
        self._clock: asyncio.TimerHandle | None = None
        self._back: set[Callable[[], None]] = set()
        self.troubles = Troubles(name=name)
        """What is the matter with the bus at the moment."""
        self._changed = asyncio.Event()
        """Set while there is a connection, and once there will be none any more."""
        self.since_s = 0.0
        """When the connection was made, or made anew (UTC s)."""
        self._up = False
        self._closing = False
        self._ended = ""
        """Why there will be no connection any more; empty while there may be one."""

    # --- state ------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._up and bool(self._wire.is_connected)

    @property
    def counters(self) -> Counters:
        stats = self._wire.stats
        return msgspec.structs.replace(
            self._counters, in_messages=stats["in_msgs"], out_messages=stats["out_msgs"]
        )

    def on_back(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` whenever the connection is back. Returns how to stop that."""
        self._back.add(callback)
        return lambda: self._back.discard(callback)

    async def there(self) -> None:
        """Wait until there is a connection. Raises Unreachable when there will be none any more."""
        while not self.connected:
            if self._ended:
                raise Unreachable(self._ended)
            await self._changed.wait()
            await asyncio.sleep(0 if self.connected else _SWEEP_S)  # it broke, and nobody has said so yet

    async def patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what `attempt` returns, tried again for as long as the bus is away or in trouble.

        Only for what may be done twice. Raises what does not pass by itself, and Unreachable when this
        connection is closed.
        """
        tries = 0
        while True:
            try:
                return await attempt()
            except PASSING:
                if self._ended:
                    raise
                await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
                tries += 1
                await self.there()

    def _require_connection(self, subject: str = "") -> None:
        if self._ended:
            raise Unreachable(self._ended)
        if not self.connected:
            self.troubles.hold(troubles.DISCONNECTED, held=subject)
            raise Unreachable("no connection to the bus")

    # --- asking -----------------------------------------------------------------------------------

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> Incoming:
        """Return the first answer.

        Raises Unreachable, Denied or TooLarge when nothing was done, and NoResponders, TimedOut or
        Disconnected (all OutcomeUnknown) when nobody can say.
        """
        answer = await self._ask(subject, data, headers, None, timeout_s)
        assert isinstance(answer, Incoming)
        return answer

    async def collect(
        self,
        subject: str,
        data: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> list[Incoming]:
        """Return all answers up to the status that ends them (which is left out). Raises as `request`."""
        answers = await self._ask(subject, data, headers, [], timeout_s)
        assert isinstance(answers, list)
        return answers

    async def _ask(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None,
        many: list[Incoming] | None,
        timeout_s: float,
    ) -> Incoming | list[Incoming]:
        self._require_connection(subject)
        self._require_size(data)
        loop = asyncio.get_running_loop()
        self._number = number = self._number + 1
        chunk = encode(subject, data, f"{self.inbox}{number}", headers)
        waiting = _Waiting(subject, loop.create_future(), many, loop.time() + timeout_s)
        self._waiting[number] = waiting
        self._counters.requests += 1
        self._wire.write(chunk)
        if self._clock is None:
            self._clock = loop.call_later(min(_SWEEP_S, timeout_s), self._sweep)
        try:
            answer: Incoming | list[Incoming] = await waiting.future
        except OutcomeUnknown as unknown:
            troubles.met(self.troubles, subject, unknown)
            raise
        finally:
            self._waiting.pop(number, None)
        if self.troubles:
            troubles.answered(self.troubles, subject)
        return answer

    def _sweep(self) -> None:
        """Fail what has waited for too long. One timer for all: nearly every request is answered in time."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for waiting in tuple(self._waiting.values()):
            if waiting.until <= now and not waiting.future.done():
                self._counters.timeouts += 1
                waiting.fail(TimedOut(f"no answer from {waiting.subject} in time"))
        self._clock = loop.call_later(_SWEEP_S, self._sweep) if self._waiting else None

    def _require_size(self, data: bytes) -> None:
        limit = self._wire.max_payload
        if len(data) > limit - _HEADER_ROOM:
            raise TooLarge(len(data), limit - _HEADER_ROOM)

    async def api(
        self, verb: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        """Return JetStream's answer to an API call, `STREAM.INFO.LOG` for instance.

        Raises ApiError with its err_code, and as `request`.
        """
        data = b"" if body is None else msgspec.json.encode(body)
        answer = await self.api_request(verb, data, timeout_s=timeout_s)
        decoded: dict[str, Any] = msgspec.json.decode(answer.data)
        error = decoded.get("error")
        if error is not None:
            raise ApiError(API + verb, error.get("err_code", 0), error.get("description", ""))
        return decoded

    async def api_request(self, verb: str, data: bytes, *, timeout_s: float = TIMEOUT_S) -> Incoming:
        """Return the answer to an API call as it came.

        Viewers and operators reach the calls that they may make under another prefix. Which one this
        connection needs shows at its first call.
        """
        try:
            return await self.request(self._api + verb, data, timeout_s=timeout_s)
        except Denied as denied:
            if self._api != API:
                raise
            try:
                answer = await self.request(OUTSIDE_API + verb, data, timeout_s=timeout_s)
            except Denied:
                raise denied from None
            self._api = OUTSIDE_API
            return answer

    # --- publishing -------------------------------------------------------------------------------

    async def publish_durable(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> PubAck:
        """Publish to a stream and return where it was stored.

        Raises StreamFull, or PublishRefused with JetStream's err_code, when it was not, and as `request`
        otherwise. An answer that is no acknowledgement is an OutcomeUnknown too.
        """
        answer = await self.request(subject, data, headers, timeout_s=timeout_s)
        try:
            ack = _ACK.decode(answer.data)
        except msgspec.DecodeError:
            raise NoResponders(f"no stream acknowledged {subject}") from None
        if ack.error is not None:
            if not ack.error.err_code:
                raise NoResponders(f"{subject}: {ack.error.description}")
            raise self._refused(subject, ack.error)
        if not ack.stream:
            raise NoResponders(f"no stream acknowledged {subject}")
        if self.troubles:
            troubles.stored(self.troubles, subject)
        return PubAck(ack.stream, ack.seq)

    def _refused(self, subject: str, failure: _Failure) -> PublishRefused:
        code, text = failure.err_code, failure.description
        if code not in _FULL or (code == _STORE_FAILED and _PER_SUBJECT in text):
            return PublishRefused(subject, code, text)
        full = StreamFull(subject, code, text, troubles.stream_of(subject))
        troubles.met(self.troubles, subject, full)
        return full

    def send(
        self, subject: str, data: bytes = b"", headers: Mapping[str, str] | None = None, *, reply: str = ""
    ) -> bool:
        """Publish without waiting for anything. False without a connection: then it was not sent."""
        if not self.connected:
            return False
        self._wire.write(encode(subject, data, reply, headers))
        return True

    async def publish(
        self, subject: str, data: bytes = b"", headers: Mapping[str, str] | None = None, *, reply: str = ""
    ) -> None:
        """Publish on core NATS, and wait if the socket cannot keep up. Raises Unreachable, TooLarge."""
        self._require_connection(subject)
        self._require_size(data)
        self._wire.write(encode(subject, data, reply, headers))
        await self._wire.drained()

    # --- listening --------------------------------------------------------------------------------

    async def subscribe(self, subject: str, sink: Sink, *, queue: str = "") -> Subscription:
        """Hand every message on `subject` to `sink`; returns once the server has the subscription.

        It survives reconnects (what is sent meanwhile does not). Raises Denied, Unreachable, Disconnected;
        then there is none.
        """
        self._require_connection()
        inner = await self._wire.subscribe(subject, queue=queue, cb=_nothing)
        self._wire.sinks[inner._id] = sink
        try:
            await self.settle()
        except BaseException:
            self._wire.sinks.pop(inner._id, None)
            with contextlib.suppress(nats_errors.Error):
                await inner.unsubscribe()
            raise
        refusal = next((denied for denied in self.denials if _is_subscription(denied, subject)), None)
        if refusal is not None:
            self.denials.remove(refusal)
            await self._unsubscribe(inner)
            raise refusal
        return Subscription(self, inner, subject)

    async def _unsubscribe(self, inner: NatsSubscription) -> None:
        with contextlib.suppress(nats_errors.Error):
            await inner.unsubscribe()
        with contextlib.suppress(BusError):
            await self.settle()
        self._wire.sinks.pop(inner._id, None)

    def new_inbox(self) -> str:
        """Return a subject of this connection's own to subscribe to, for answers that are no single ones."""
        self._number += 1
        return f"{self.inbox.rstrip('.')}-{self._number}"

    async def settle(self, timeout_s: float = 10.0) -> None:
        """Wait until the server has handled everything written so far, subscriptions included.

        Twice, since nats-py 2.16 puts the first flush's PING on the wire ahead of a queued SUB.
        Raises Unreachable, and Disconnected when the connection breaks or nothing comes back in time.
        """
        self._require_connection()
        try:
            for _ in range(2):
                await self._wire.round_trip(timeout_s)
        except (nats_errors.Error, OSError) as broken:  # TimeoutError is an OSError
            raise Disconnected("the connection broke") from broken

    def _on_answer(self, message: Incoming) -> None:
        waiting = self._waiting.get(int(message.subject[len(self.inbox) :]))
        if waiting is not None:
            waiting.take(message)

    # --- life -------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the connection; everything still awaited ends as Disconnected. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._up = False
        self._ended = "this connection is closed"
        self._changed.set()
        self._fail_waiting()
        self.troubles.close()
        aborting = asyncio.get_running_loop().call_later(_CLOSE_S, self._wire.abort)
        try:
            await self._wire.close()
        finally:
            aborting.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(
        self, servers: list[str], seed: str | None, tls: ssl.SSLContext | None, timeout_s: float
    ) -> None:
        """Try to connect once. Raises Unreachable or AuthenticationFailed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wire.connect(
                    servers=servers,
                    name=self.name,
                    nkeys_seed_str=seed,
                    tls=tls,
                    allow_reconnect=False,  # for the first time: else it would try for ever behind our back
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0.05,  # type: ignore[arg-type]  # seconds; a float does
                    ping_interval=5,
                    max_outstanding_pings=2,
                    pending_size=0,
                    inbox_prefix=self.inbox.rstrip("."),
                    error_cb=self._on_error,
                    disconnected_cb=self._on_disconnect,
                    reconnected_cb=self._on_reconnect,
                    closed_cb=self._on_close,
                )
        except (nats_errors.Error, OSError, TimeoutError) as failed:
            await self.close()
            if "authorization violation" in str(failed).lower():
                raise AuthenticationFailed("the bus does not know these credentials") from None
            raise Unreachable("the bus does not answer") from failed
        self._wire.options.update(allow_reconnect=True, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
        self._up = True
        self.since_s = time.time()
        self._changed.set()
        try:
            await self.subscribe(f"{self.inbox}*", self._on_answer)
        except OutcomeUnknown as broken:
            await self.close()
            raise Unreachable("the connection broke as it was made") from broken

    async def _on_error(self, error: Exception) -> None:
        if not self._up or self._closing or isinstance(error, OSError | nats_errors.Error):
            return  # each failed attempt to reconnect comes along here; `_on_disconnect` has said it once
        _log.error("bus_error", error=type(error).__name__)

    async def _on_disconnect(self) -> None:
        if not self._up:
            return
        self._up = False
        self._changed.clear()
        self._counters.disconnects += 1
        if not self._closing:
            self.troubles.hit(troubles.DISCONNECTED)
        self._fail_waiting()

    async def _on_reconnect(self) -> None:
        self._up = True
        self.since_s = time.time()
        self._changed.set()
        self.troubles.well(troubles.DISCONNECTED)
        for callback in tuple(self._back):
            callback()

    async def _on_close(self) -> None:
        """The server ended it for good, for instance because the credentials were withdrawn."""
        self._up = False
        if not self._closing:
            self._ended = "the bus closed this connection for good"
            self._changed.set()
            self._fail_waiting()
            _log.error("bus_closed", name=self.name)

    def _fail_waiting(self) -> None:
        for waiting in tuple(self._waiting.values()):
            waiting.fail(Disconnected(f"the connection broke before {waiting.subject} answered"))

    def _on_denied(self, operation: str, subject: str) -> None:
        verb = "subscribe to" if operation == "subscription" else "publish to"
        self.denials.append(Denied(verb, subject))
        self._counters.denied += 1
        _log.info("bus_denied", name=self.name, operation=operation, subject=subject)
        for waiting in tuple(self._waiting.values()):
            if waiting.subject == subject:
                waiting.fail(Denied(verb, subject))


async def connect(
    url: str,
    *,
    name: str,
    seed: str | None = None,
    wait: bool = False,
    timeout_s: float = 5.0,
    tls: ssl.SSLContext | None = None,
) -> Bus:
    """Return a connection as `name`.

    Args:
        url: one server or several, separated by commas.
        seed: nkey seed. None connects without credentials, with the inbox `_INBOX` of such connections.
        wait: whether to wait for a bus that is not there yet, for as long as it takes; else Unreachable.
        timeout_s: how long one attempt may take.

    Raises AuthenticationFailed, `wait` or not.
    """
    servers = [part.strip() for part in url.split(",")]
    attempt, began = 0, time.monotonic()
    while True:
        bus = Bus(name, inbox_prefix(name, anonymous=seed is None))
        try:
            await bus._open(servers, seed, tls, timeout_s)
        except Unreachable:
            if not wait:
                raise
            if attempt == 0:
                _log.info("bus_awaited", url=url, name=name)
            await asyncio.sleep(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])
            attempt += 1
        else:
            if attempt:
                _log.info("bus_found", url=url, name=name, waited_s=round(time.monotonic() - began, 3))
            return bus


def _is_subscription(denied: Denied, subject: str) -> bool:
    return denied.operation == "subscribe to" and denied.subject == subject


async def _nothing(message: object) -> None:
    """What nats-py is told to call; `Wire` never lets it."""
