"""Continuous pulling: work arrives as fast as slots become free, and never faster.

Two rules hold. First, requested messages plus messages in progress never exceed the slots, because no one
else can take a message that waits in our memory. Few slots keep a flood from filling that memory; more slots,
when there is no flood, let messages travel together. Second, a pull ends at the server before a lease does.
Otherwise a frozen process would keep getting back the messages that it has just lost. An idle pull may last
longer, since it asks for only one message while nothing is in progress.

An inbox does not prove who sent a message. A delivery from our own consumer asks for an acknowledgement. Any
other message is dropped, counted and logged, and its reply subject is never used.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from random import uniform

import msgspec

from mesh.bus.connection import Bus, Subscription
from mesh.bus.nats_protocol import Incoming
from mesh.bus.roles import NEXT
from mesh.bus.streams import NS
from mesh.errors import PASSING, MeshError
from mesh.service.conditions import Kind
from mesh.service.logs import get_logger
from mesh.telemetry import export as telemetry
from mesh.telemetry import tracing

_log = get_logger(__name__)

PULL_REFUSED = Kind("pull_refused", "pull_accepted", "the bus does not take pulls ({})")
PULL_SILENT = Kind("pull_silent", "pull_heard", "nothing is heard of pulls", settle_s=10.0)
NO_DELIVERY = Kind(
    "no_delivery", "only_deliveries", "what is no delivery of {} came to its inbox", blocks=False
)

_NUMBERS = re.compile(r"(\d{1,20})\.(\d{1,20})\.\d+\.(\d{1,20})\.(\d{1,20})", re.ASCII)
"""End of `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<stored at>.<pending>`."""
_GRACE_S = 1.5
_GATHER_S = 0.002
"""How long a request for less than half of the slots waits for more slots, since quick handlers end
together."""
_CLEANUP_S = 5.0
"""How long a cancelled handler may clean up. Then it is cancelled again, since it may have swallowed the
first cancellation."""
_PAUSED_NAK_S = 1.0
_TROUBLED_NAK_S = 1.0
_PROBE_NS = NS // 4
"""Duration of a pull that tests if pulls work again."""
_QUIET_STATUSES = (404, 408)
"""Nothing found; timeout. Every idle pull ends with one of these."""
_BACKOFF_S = {409: 0.1, 423: 0.1, 503: 0.25, 400: 2.0}
"""409, 423: the consumer or its leader changed. 503: no leader. 400: a bad request."""


def spread(delay_s: float) -> float:
    """Return a random delay between a fifth and twice `delay_s`, for messages that others should take over.

    Pulls are served in turn. Messages redelivered in lockstep would always meet the same takers again.
    """
    return uniform(0.2, 2.0) * delay_s


class Message:
    """One delivery. It occupies a slot until its handler ends or calls `done`."""

    __slots__ = ("_incoming", "_puller", "_taken", "delivered", "stored_us", "stream_seq")

    def __init__(self, puller: "Puller", incoming: Incoming, numbers: re.Match[str]) -> None:
        self._puller = puller
        self._incoming = incoming
        self._taken = True
        delivered, seq, stored_at, _ = numbers.groups()
        self.delivered = int(delivered)
        """Number of deliveries, including this one."""
        self.stream_seq = int(seq)
        self.stored_us = int(stored_at) // 1000
        """UTC µs at which it was stored."""

    @property
    def subject(self) -> str:
        """The subject under which the message is stored."""
        return self._incoming.subject

    @property
    def data(self) -> bytes:
        return self._incoming.data

    @property
    def headers(self) -> dict[str, str]:
        return self._incoming.headers

    def header(self, name: str) -> str:
        """Return one header's value; empty if missing."""
        return self._incoming.header(name)

    def ack(self) -> bool:
        """Acknowledge it for good. Return False without a connection; then it will be delivered again."""
        return self._send(b"")

    async def ack_sync(self) -> None:
        """Acknowledge it, and wait for the server's confirmation. Raises as `Bus.request`."""
        await self._puller.bus.request(self._incoming.reply, b"+ACK")

    def nak(self, delay_s: float = 0.0) -> bool:
        """Give it back, to be delivered again after `delay_s`."""
        if delay_s <= 0:
            return self._send(b"-NAK")
        return self._send(b'-NAK {"delay": %d}' % int(delay_s * NS))

    def in_progress(self) -> bool:
        """Renew the lease for the consumer's ack wait."""
        return self._send(b"+WPI")

    def term(self, reason: str = "") -> bool:
        """Give it up for good. It is never delivered again."""
        return self._send(f"+TERM {reason}".strip().encode())

    def done(self) -> None:
        """Free the slot before the handler ends. This does not acknowledge anything. Idempotent."""
        if self._taken:
            self._taken = False
            self._puller._slot_free()

    def _send(self, what: bytes) -> bool:
        return self._puller.bus.send(self._incoming.reply, what)


Handler = Callable[[Message], Awaitable[None]]


class Puller:
    """Pulls from one durable consumer and runs `on_message` for each message, in its own task.

    A handler acknowledges its message itself. If it raises a transient error of the bus, the message is given
    back and comes again a second later; the connection reports that error itself. Any other error is logged
    with its traceback, and the message comes again when its lease ends.

    Args:
        slots: limit of messages requested or in progress.
        most: the limit while no more messages than that wait in the queue; by default `slots`.
        expires_s: how long one pull waits at the server; less than the consumer's ack wait.
        group, priority: for a consumer with prioritized groups; 0 is served before 9.
        idle_s: returns how long a pull lasts while nothing is in progress; it asks for one message. None: as
            long as any other pull.
    """

    def __init__(
        self,
        bus: Bus,
        stream: str,
        consumer: str,
        on_message: Handler,
        *,
        slots: int,
        most: int | None = None,
        expires_s: float,
        group: str | None = None,
        priority: int | None = None,
        idle_s: Callable[[], float] | None = None,
    ) -> None:
        if slots < 1:
            raise ValueError("a puller needs a slot")
        self.bus = bus
        self.slots = slots
        self.most = slots if most is None else most
        self._room = slots
        """The current limit: `most` if the last delivery had no backlog behind it, otherwise `slots`."""
        self.in_hand = 0
        """Messages whose handlers are running and have not called `done`."""
        self.requested = 0
        """Messages that the server may still send."""
        self.waiting = 0
        """Messages that waited behind the last delivery."""
        self.dropped = 0
        """Messages in the inbox that the consumer did not send."""
        self._name = f"{stream}/{consumer}"
        self._subject = f"{NEXT}{stream}.{consumer}"
        self._sender = f"$JS.ACK.{stream}.{consumer}."
        self._on_message = on_message
        self._silence_s = expires_s + _GRACE_S
        self._expires_ns = int(expires_s * NS)
        self._idle_s = idle_s
        self._body: dict[str, object] = {"expires": self._expires_ns}
        if group is not None:
            self._body["group"] = group
        if priority is not None:
            self._body["priority"] = priority
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscription: Subscription | None = None
        self._stop_hearing: Callable[[], None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._gathering: asyncio.TimerHandle | None = None
        """Set while a request for few messages waits for more free slots."""
        self._heard_at = 0.0
        self._refused = ""
        """The error status with which pulls currently end; empty if they work."""
        self._started = self._paused = self._stopped = False

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to pull. Pulling survives reconnects, and ends for good with `drain` or `close`.

        Raises Unreachable or Disconnected; then it may be started again.
        """
        if self._started:
            raise ValueError("this puller was started before")
        if self._stopped:
            return
        self._started = True
        self._loop = asyncio.get_running_loop()
        try:
            subscription = await self.bus.subscribe(self.bus.new_inbox(), self._on_message_in)
        except BaseException:
            self._started = False
            raise
        if self._stopped:  # in the meantime; without a pull, nothing will come
            await subscription.close()
            return
        self._subscription = subscription
        telemetry.dropped_deliveries.add(0, {tracing.BY: self.bus.name})  # the first one is to be an increase
        self._stop_hearing = self.bus.on_back(self._start_over)
        self._start_over()
        self._watch()

    def pause(self) -> None:
        """Request no more. Messages that still arrive are given back, and come again a second later."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._subscription is not None:
            self._pull()

    @property
    def running(self) -> bool:
        """True between `start` and `drain` or `close`."""
        return self._subscription is not None

    async def drain(self) -> None:
        """End all pulls at once, and wait for running handlers. Call `close` afterwards."""
        await self.stop()
        while self._tasks:
            await self._ended()

    async def close(self) -> None:
        """End all pulls and cancel handlers, repeatedly if one swallows its cancellation. Idempotent."""
        await self.stop()
        while self._tasks:
            for task in tuple(self._tasks):
                task.cancel()
            await self._ended(_CLEANUP_S)

    async def _ended(self, timeout_s: float | None = None) -> None:
        """Wait for the current handlers, and forget those that ended, even before they began."""
        ended, _ = await asyncio.wait(tuple(self._tasks), timeout=timeout_s)
        self._tasks -= ended

    async def stop(self) -> None:
        """End all pulls at once; handlers go on. Messages already sent are given back. Idempotent."""
        self._stopped = True
        self._accepted()  # refused pulls do not matter any more
        for timer in (self._watchdog, self._retry, self._gathering):
            if timer is not None:
                timer.cancel()
        if self._stop_hearing is not None:
            self._stop_hearing()
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            await subscription.close()

    # --- asking -----------------------------------------------------------------------------------

    def _pull(self, *, few: bool = False) -> None:
        """Request as many messages as there are free slots, unless the request can wait.

        Args:
            few: request them even if they are less than half of the current slots.
        """
        free = self._room - self.in_hand - self.requested
        if free < 1 or self._paused or self._retry is not None or self._subscription is None:
            return
        if free * 2 < self._room and not few:  # a request for each free slot would cost too much
            if not self.requested and self._gathering is None:
                self._gathering = self._loop.call_later(_GATHER_S, self._pull_few)
            return  # otherwise some messages are already coming
        body = {"batch": free, **self._body}
        if self._idle_s is not None and not self.in_hand:
            if self.requested:
                return  # a long pull begins only when all others have ended
            idle_s = self._idle_s()
            self._silence_s = idle_s + _GRACE_S
            free = 1
            body |= {"batch": 1, "expires": int(idle_s * NS)}
        if self._refused:  # an idle pull is silent until it ends; a short one shows the result soon
            body["expires"] = min(self._expires_ns, _PROBE_NS)
        if self.bus.send(self._subject, msgspec.json.encode(body), reply=self._subscription.subject):
            self.requested += free

    def _pull_few(self) -> None:
        self._gathering = None
        self._pull(few=True)

    def _start_over(self) -> None:
        """Request again, because the pulls are gone with the connection or the leader."""
        self.requested = 0
        self._heard_at = self._loop.time()
        self._pull()

    def _watch(self) -> None:
        """Start over if neither messages nor ends of pulls have arrived for too long."""
        if not self.bus.connected:
            pass  # the connection reports it, and starts over when it is back
        elif self.requested and self._loop.time() - self._heard_at > self._silence_s:
            self.bus.conditions.raise_(PULL_SILENT, held=self._name, consumer=self._name)
            self._start_over()
        elif not self.requested:
            self._pull()
        self._watchdog = self._loop.call_later(self._silence_s / 2, self._watch)

    def _again_later(self, delay_s: float) -> None:
        if self._retry is None:
            self._retry = self._loop.call_later(delay_s, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self._pull()

    def _slot_free(self) -> None:
        self.in_hand -= 1
        self._pull()

    # --- receiving --------------------------------------------------------------------------------

    def _on_message_in(self, message: Incoming) -> None:
        status = 0 if message.reply else message.status
        numbers = None if status else self._numbers(message.reply)
        if not status and numbers is None:
            self._drop(message)
            return
        self._heard_at = self._loop.time()
        if self.bus.conditions:
            self.bus.conditions.clear(PULL_SILENT)
        if numbers is None:
            self._on_status(message, status)
        else:
            self._on_delivery(message, numbers)

    def _numbers(self, reply: str) -> re.Match[str] | None:
        """Return the numbers in an acknowledgement subject of our consumer; None for any other subject."""
        if not reply.startswith(self._sender):
            return None
        return _NUMBERS.fullmatch(reply, len(self._sender))

    def _drop(self, message: Incoming) -> None:
        self.dropped += 1
        telemetry.dropped_deliveries.add(1, {tracing.BY: self.bus.name})
        self.bus.conditions.raise_(
            NO_DELIVERY,
            self._name,
            subject=message.subject,
            reply=message.reply,
            size=len(message.data),
        )

    def _on_status(self, message: Incoming, status: int) -> None:
        unsent = message.headers.get("Nats-Pending-Messages")
        # An end without a number ends every request, because there was no consumer to take it.
        self.requested = max(0, self.requested - int(unsent)) if unsent else 0
        if status in _QUIET_STATUSES:
            self._accepted()
            self._pull()
            return
        self._refused = str(status)
        self.bus.conditions.raise_(
            PULL_REFUSED,
            self._refused,
            held=self._name,
            consumer=self._name,
            description=message.description,
        )
        self._again_later(_BACKOFF_S.get(status, 0.25))

    def _accepted(self) -> None:
        if self._refused:
            self.bus.conditions.clear(PULL_REFUSED, self._refused)
            self._refused = ""

    def _on_delivery(self, incoming: Incoming, numbers: re.Match[str]) -> None:
        self._accepted()
        self.requested = max(0, self.requested - 1)
        self.waiting = int(numbers[4])
        self._room = self.most if self.waiting <= self.most else self.slots
        message = Message(self, incoming, numbers)
        if self._paused or self._stopped or self.in_hand >= self.most:
            # More than requested: the server still has a pull from before the connection broke.
            message.nak(_PAUSED_NAK_S if self._paused else 0.0)
            self._pull()
            return
        self.in_hand += 1
        if not self.requested:
            self._pull()  # an idle pull asked for this message only
        task = self._loop.create_task(self._handle(message))
        self._tasks.add(task)

    async def _handle(self, message: Message) -> None:
        try:
            await self._on_message(message)
        except PASSING as trouble:
            _log.debug("handed_back", consumer=self._name, code=trouble.code)
            message.nak(_TROUBLED_NAK_S)
        except MeshError as error:
            _log.warning("handler_failed", consumer=self._name, code=error.code, exc_info=True)
        except Exception:
            _log.exception("handler_failed", consumer=self._name)
        finally:
            message.done()
            self._tasks.discard(
                asyncio.current_task(self._loop)
            )  # a done callback would cost another pass of the loop
