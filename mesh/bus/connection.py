"""One connection to the bus: request, publish and subscribe, with typed errors.

A message is never resent without the caller's knowledge. Without a connection, calls fail at once
(`Unreachable`). If the connection breaks, all waiting calls end as `Disconnected`.
"""

import asyncio
import contextlib
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Self, TypeVar

import msgspec

from mesh.bus import credentials
from mesh.bus.credentials import NO_FILES, RenewableKey, TlsFiles
from mesh.bus.link import Link
from mesh.bus.nats_protocol import Incoming, NatsProtocol, Sink, encode
from mesh.bus.request_mux import PubAck, RequestMux, read_ack
from mesh.bus.roles import API, OUTSIDE_API, RESERVED, inbox_prefix
from mesh.errors import (
    PASSING,
    ApiError,
    AuthenticationFailed,
    BusError,
    Denied,
    Disconnected,
    NoResponders,
    OutcomeUnknown,
    StreamFull,
    TooLarge,
    Unreachable,
)
from mesh.service.conditions import Conditions
from mesh.service.logs import get_logger

_log = get_logger(__name__)

T = TypeVar("T")

TIMEOUT_S = 5.0
_RETRY_S = (0.1, 0.2, 0.5, 1.0, 2.0)
_HEADER_ROOM = 2048


class Counters(msgspec.Struct):
    """Counts of a connection since it was made."""

    requests: int
    disconnects: int
    in_messages: int
    out_messages: int


class Subscription:
    """A subscription confirmed by the server."""

    def __init__(self, bus: "Bus", number: int, subject: str) -> None:
        self._bus = bus
        self._number = number
        self.subject = subject

    async def close(self) -> None:
        """End it. Messages already sent by the server still reach the sink. Idempotent."""
        await self._bus._unsubscribe(self._number)


class Bus:
    """A connection. Made by `connect`; `async with` closes it."""

    def __init__(self, name: str, prefix: str) -> None:
        self.name = name
        self.denials: deque[Denied] = deque(maxlen=100)
        """The server's latest denials, including those of messages without a reply."""
        self.conditions = Conditions(name=name)
        """The current conditions of the bus."""
        self.sign: Callable[[bytes], credentials.Signature] | None = None
        """Signs with this member's key; None without one."""
        self._mux = RequestMux(prefix)
        self.inbox = self._mux.inbox
        self._wire = NatsProtocol(self._on_denied)
        self._link = Link(name, self._wire, self.conditions, self._mux.break_off)
        self._api = API if name in RESERVED else OUTSIDE_API
        self._seed: str | RenewableKey | None = None
        self._connect: Callable[..., Awaitable[Bus]] | None = None
        self._besides = weakref.WeakSet[Bus]()

    # --- state ------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._link.connected

    @property
    def certificate_until(self) -> float | None:
        """When the certificate of the server at hand expires (Unix time); None without TLS."""
        return self._wire.certificate_until

    @property
    def greeting(self) -> Mapping[str, Any]:
        """The server's greeting: its version, whether it has JetStream, and more."""
        return self._wire._server_info

    @property
    def since_s(self) -> float:
        """When the connection last came up (UTC s)."""
        return self._link.since_s

    @property
    def counters(self) -> Counters:
        stats = self._wire.stats
        return Counters(
            requests=self._mux.requests,
            disconnects=self._link.disconnects,
            in_messages=stats["in_msgs"],
            out_messages=stats["out_msgs"],
        )

    def on_back(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` each time the connection comes back. Return a function that stops this."""
        return self._link.on_back(callback)

    async def wait_connected(self) -> None:
        """Wait until the connection is up. Raises Unreachable if it has ended for good."""
        await self._link.wait_connected()

    async def retry_unavailable(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `attempt`, repeating it while the bus is unavailable.

        `attempt` must be safe to repeat. Raises permanent errors, and Unreachable if this connection is
        closed.
        """
        tries = 0
        while True:
            try:
                return await attempt()
            except PASSING:
                if self._link.ended:
                    raise
                await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
                tries += 1
                await self.wait_connected()

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

        Raises Unreachable, Denied or TooLarge if nothing was done, and NoResponders, TimedOut or Disconnected
        (all OutcomeUnknown) if that is unknown.
        """
        answer = await self._ask(subject, data, headers, None, timeout_s)
        assert isinstance(answer, Incoming)
        return answer

    async def collect(
        self, subject: str, data: bytes = b"", *, timeout_s: float = TIMEOUT_S
    ) -> list[Incoming]:
        """Return all answers before the status that ends them.

        The timeout counts from the latest answer on this connection, since a link may be slow.
        Raises as `request`, and ApiError if the status is an error.
        """
        answers = await self._ask(subject, data, None, [], timeout_s)
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
        self._link.require(subject)
        self._require_size(data)
        number = self._mux.next_number()
        chunk = encode(subject, data, f"{self.inbox}{number}", headers)
        self._wire.write(chunk, last=True)
        try:
            answer: Incoming | list[Incoming] = await self._mux.expect(subject, number, many, timeout_s)
        except OutcomeUnknown as unknown:
            self._link.failed(subject, unknown)
            raise
        finally:
            self._mux.forget(number)
        self._link.answered(subject)
        return answer

    def _require_size(self, data: bytes) -> None:
        limit = self._wire.max_payload
        if len(data) > limit - _HEADER_ROOM:
            raise TooLarge(len(data), limit - _HEADER_ROOM)

    async def api(
        self, verb: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        """Return JetStream's answer to an API call, such as `STREAM.INFO.LOG`.

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
        """Return the undecoded answer to an API call.

        Viewers and operators use a different API prefix than guards and the admin. For names that do not tell
        the role, the first call finds out which prefix works.
        """
        try:
            return await self.request(self._api + verb, data, timeout_s=timeout_s)
        except (Denied, NoResponders) as refused:
            if self._api == API:
                raise
            try:
                answer = await self.request(API + verb, data, timeout_s=timeout_s)
            except Denied as denied:
                raise (denied if isinstance(refused, Denied) else refused) from None
            self._api = API
            return answer

    # --- publishing -------------------------------------------------------------------------------

    async def publish_durable(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        after: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> PubAck:
        """Publish to a stream and return where the message was stored.

        Args:
            after: store it only if the subject's last message has this sequence (0: if there is none). None
                sets no condition.

        Raises PublishRefused, or a subclass for the reason, if it was not stored, and as `request`. An answer
        that is not an acknowledgement is an OutcomeUnknown, too.
        """
        if after is not None:
            headers = {**(headers or {}), "Nats-Expected-Last-Subject-Sequence": str(after)}
        answer = await self._ask(subject, data, headers, None, timeout_s)
        assert isinstance(answer, Incoming)
        try:
            ack = read_ack(subject, answer.data)
        except StreamFull as full:
            self._link.failed(subject, full)
            raise
        self._link.stored(subject)
        return ack

    def send(
        self, subject: str, data: bytes = b"", headers: Mapping[str, str] | None = None, *, reply: str = ""
    ) -> bool:
        """Publish without waiting. Return False without a connection; then nothing was sent."""
        if not self.connected:
            return False
        self._wire.write(encode(subject, data, reply, headers))
        return True

    async def publish(
        self, subject: str, data: bytes = b"", headers: Mapping[str, str] | None = None, *, reply: str = ""
    ) -> None:
        """Publish on core NATS, and wait while the socket is full. Raises Unreachable, TooLarge."""
        self._link.require(subject)
        self._require_size(data)
        self._wire.write(encode(subject, data, reply, headers))
        await self._wire.drained()

    # --- listening --------------------------------------------------------------------------------

    async def subscribe(self, subject: str, sink: Sink, *, most: int | None = None) -> Subscription:
        """Pass every message on `subject` to `sink`. Returns once the server has confirmed the subscription.

        The subscription survives reconnects, but messages sent in between are lost. Raises Denied,
        Unreachable or Disconnected; then there is no subscription.

        Args:
            most: the server ends the subscription after this many messages.
        """
        self._link.require()
        number = await self._wire.listen(subject, sink, most)
        try:
            await self.flush()
        except BaseException:
            self._wire.sinks.pop(number, None)
            await self._wire.end_listening(number)
            raise
        refusal = next((denied for denied in self.denials if _is_subscription(denied, subject)), None)
        if refusal is not None:
            self.denials.remove(refusal)
            await self._unsubscribe(number)
            raise refusal
        return Subscription(self, number, subject)

    async def _unsubscribe(self, number: int) -> None:
        await self._wire.end_listening(number)
        with contextlib.suppress(BusError):
            await self.flush()
        self._wire.sinks.pop(number, None)

    def listen_for(self, subject: str, queue: str, most: int, sink: Callable[[int, Incoming], None]) -> int:
        """Pass the next `most` messages on `subject` to `sink`, as a member of a queue group.

        Returns the subscription's number, which the sink gets, too. The server ends the subscription after
        these messages, and it also ends with the connection. This does not wait for the server's
        confirmation.
        """
        return self._wire.listen_for(subject, queue, most, sink)

    def extend_listening(self, number: int, most: int) -> None:
        """Have the server end a `listen_for` subscription after `most` messages in total, unless it has."""
        self._wire.say(f"UNSUB {number} {most}\r\n")

    def end_listening_for(self, number: int) -> None:
        """End a `listen_for` subscription. Messages already sent by the server still reach the sink."""
        if self.connected:
            self._wire.say(f"UNSUB {number}\r\n")

    def forget(self, number: int) -> None:
        """Pass nothing more to the sink of a `listen_for` subscription that has ended."""
        self._wire.sinks.pop(number, None)

    def new_inbox(self) -> str:
        """Return a new subject of this connection to which a stream of answers can be sent."""
        return self._mux.beside()

    async def flush(self, timeout_s: float = 10.0) -> None:
        """Wait until the server has handled everything written so far, including subscriptions.

        It pings twice, because nats-py 2.16 sends the first PING before a queued SUB. Raises Unreachable, and
        Disconnected if the connection breaks or the answer is late.
        """
        self._link.require()
        try:
            for _ in range(2):
                await self._wire.round_trip(timeout_s)
        except OSError as broken:  # TimeoutError is one
            raise Disconnected("the connection broke") from broken

    # --- life -------------------------------------------------------------------------------------

    async def beside(self) -> "Bus":
        """Return another connection under the same name. Waits while the bus is away.

        Raises AuthenticationFailed, TlsFailed.
        """
        assert self._connect is not None
        seed = self._seed.twin() if isinstance(self._seed, RenewableKey) else self._seed
        other = await self._connect(seed=seed)
        self._besides.add(other)
        return other

    def renew(self) -> None:
        """Read the key again; if there is another, connect anew with it, also the connections `beside`.

        What waits for an answer is broken off, as if the connection was lost.
        """
        key = self._wire.key
        if key is not None and key.is_replaced():
            _log.info("bus_key_replaced", name=self.name)
            self._link.reconnect()
        for other in tuple(self._besides):
            other.renew()

    async def close(self) -> None:
        """Close the connection. Waiting calls end as Disconnected. Idempotent."""
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _open(
        self, servers: list[str], seed: str | RenewableKey | None, tls: TlsFiles, timeout_s: float
    ) -> None:
        """Try to connect once. A failed attempt leaves nothing open.

        Raises Unreachable, TlsFailed, AuthenticationFailed, Denied.
        """
        try:
            await self._link.open(servers, self.inbox.rstrip("."), seed, tls, timeout_s)
            await self.subscribe(f"{self.inbox}*", self._mux.take)
        except BaseException as failed:
            await self.close()
            if isinstance(failed, OutcomeUnknown):
                raise self._link.broke_at_once() from failed
            raise

    def _on_denied(self, operation: str, subject: str) -> None:
        denied = Denied("subscribe to" if operation == "subscription" else "publish to", subject)
        self.denials.append(denied)
        _log.info("bus_denied", name=self.name, operation=operation, subject=subject)
        self._mux.deny(denied)


async def connect(
    url: str,
    *,
    name: str,
    seed: str | RenewableKey | None = None,
    wait: bool = False,
    timeout_s: float = 5.0,
    tls: TlsFiles = NO_FILES,
) -> Bus:
    """Return a connection as `name`.

    Args:
        url: one server, or several separated by commas.
        seed: nkey seed. A key that may be replaced is read again for each connect, and if the bus revokes
            it, the connection waits for a valid one; otherwise that ends it. None connects without
            credentials, with the inbox `_INBOX` of such connections.
        wait: wait without limit for a bus that is not there yet. Otherwise raise Unreachable.
        timeout_s: limit of one attempt.
        tls: files that secure the connection. A `tls://` URL, or any file, requires TLS.

    Raises AuthenticationFailed and TlsFailed with and without `wait`.
    """
    servers = [part.strip() for part in url.split(",")]
    attempt, began = 0, time.monotonic()
    while True:
        bus = Bus(name, inbox_prefix(name, anonymous=seed is None))
        if seed is not None:
            bus.sign = seed.sign if isinstance(seed, RenewableKey) else partial(credentials.sign, seed)
        bus._seed, bus._connect = seed, partial(connect, url, name=name, wait=True, tls=tls)
        try:
            await bus._open(servers, seed, tls, timeout_s)
        except AuthenticationFailed:
            if not isinstance(seed, RenewableKey) or not seed.refuse():
                raise
        except Unreachable as error:
            if not wait:
                raise
            if attempt == 0:
                _log.info("bus_awaited", url=url, name=name, reason=str(error))
            await asyncio.sleep(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])
            attempt += 1
        else:
            if attempt:
                _log.info("bus_found", url=url, name=name, waited_s=round(time.monotonic() - began, 3))
            return bus


def _is_subscription(denied: Denied, subject: str) -> bool:
    return denied.operation == "subscribe to" and denied.subject == subject
