"""Continuous pulling: work comes in as fast as slots are free, and never faster.

Two rules. What is requested and what is in hand together never exceed `slots`, because a message that
waits in our memory is one that nobody else can take. And a pull ends, at the server, before a lease
does: a frozen process would otherwise be given again and again what it had just lost. An idle pull may last
longer: it asks for one message while nothing is in hand, so that what was lost goes to somebody else.

A puller's inbox is no proof of a sender. Only a message that its own consumer wants acknowledged is a
delivery; every other message is dropped, counted and logged, and its reply subject is never used.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from mesh.bus.conditions import NO_DELIVERY, PULL_REFUSED, PULL_SILENT
from mesh.bus.connection import Bus, Subscription
from mesh.bus.nats_protocol import Incoming
from mesh.bus.roles import NEXT
from mesh.bus.streams import NS
from mesh.errors import PASSING, MeshError
from mesh.service import metrics, names
from mesh.service.logger import get_logger

_log = get_logger(__name__)

_DELIVERED, _STREAM_SEQ, _, _STORED_AT, _PENDING = range(4, 9)
"""Places in `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<stored at>.<pending>`."""
_GRACE_S = 1.5
_PAUSED_NAK_S = 1.0
_TROUBLED_NAK_S = 1.0
_PROBE_NS = NS // 4
"""How long a pull lasts that finds out whether pulls are taken again."""
_QUIET_STATUSES = (404, 408)
"""Nothing there, time is up: how every idle pull ends."""
_BYTES_REACHED = ("Message Size Exceeds MaxBytes", "Batch Completed")
"""How a status 409 describes that a pull has all its bytes, or that the next message is more."""
_BACKOFF_S = {409: 0.1, 423: 0.1, 503: 0.25, 400: 2.0}
"""Something about the consumer or its leader changed; nobody leads; we asked for something wrong."""


class Message:
    """One delivery. It holds a slot until its handler ends or `done` is called, whichever is first."""

    __slots__ = ("_ack", "_incoming", "_puller", "_taken")

    def __init__(self, puller: "Puller", incoming: Incoming, ack: list[str]) -> None:
        self._puller = puller
        self._incoming = incoming
        self._ack = ack
        self._taken = True

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

    @property
    def delivered(self) -> int:
        """How often it was delivered, this time included."""
        return int(self._ack[_DELIVERED])

    @property
    def stream_seq(self) -> int:
        return int(self._ack[_STREAM_SEQ])

    @property
    def stored_us(self) -> int:
        """When it was stored: UTC µs."""
        return int(self._ack[_STORED_AT]) // 1000

    @property
    def pending(self) -> int:
        """How many messages of this consumer were waiting behind it."""
        return int(self._ack[_PENDING])

    def ack(self) -> bool:
        """It is done for good. False without a connection: it will come again."""
        return self._say(b"")

    async def ack_sync(self, timeout_s: float = 5.0) -> None:
        """It is done for good, and the server has noted it. Raises as `Bus.request`."""
        await self._puller.bus.request(self._incoming.reply, b"+ACK", timeout_s=timeout_s)

    def nak(self, delay_s: float = 0.0) -> bool:
        """Deliver it again, to anybody, after `delay_s`."""
        if delay_s <= 0:
            return self._say(b"-NAK")
        return self._say(b'-NAK {"delay": %d}' % int(delay_s * NS))

    def in_progress(self) -> bool:
        """Extend the lease by the consumer's ack wait from now."""
        return self._say(b"+WPI")

    def term(self, reason: str = "") -> bool:
        """Never deliver it again, to nobody."""
        return self._say(f"+TERM {reason}".strip().encode())

    def done(self) -> None:
        """Free the slot before the handler ends. Idempotent; acknowledges nothing."""
        if self._taken:
            self._taken = False
            self._puller._slot_free(len(self.data))

    def _say(self, what: bytes) -> bool:
        return self._puller.bus.send(self._incoming.reply, what)


Handler = Callable[[Message], Awaitable[None]]


class Puller:
    """Pulls from one durable consumer and runs `on_message` for each message, as a task of its own.

    A handler acknowledges by itself. Trouble with the bus that it raises gives the message back, to come
    again a second later; the connection says that trouble itself. What else it raises is logged with its
    traceback, and the message is delivered again when its lease ends.

    Args:
        slots: most messages requested or in hand at any time.
        expires_s: how long one pull waits at the server; less than the consumer's ack wait.
        heartbeat_s: ask the server for signs of life while a pull waits. A pull that ends within a few
            seconds is one itself, so that None is right there.
        group, priority: of a consumer with prioritized groups; 0 is served before 9.
        idle_s: how long a pull lasts, now, while nothing is in hand; it asks for one message. None: as long
            as any other.
        most_bytes: bytes of one pull, and bytes in hand from which on nothing is asked for. At most three
            times as many are ever held. It must exceed the largest message, which would never come else.
    """

    def __init__(
        self,
        bus: Bus,
        stream: str,
        consumer: str,
        on_message: Handler,
        *,
        slots: int,
        expires_s: float,
        heartbeat_s: float | None = None,
        group: str | None = None,
        priority: int | None = None,
        idle_s: Callable[[], float] | None = None,
        most_bytes: int | None = None,
    ) -> None:
        if slots < 1:
            raise ValueError("a puller needs a slot")
        self.bus = bus
        self.slots = slots
        self.in_hand = 0
        """Messages whose handlers run and have not said `done`."""
        self.requested = 0
        """Messages that the server may still send."""
        self.dropped = 0
        """Messages in this puller's inbox that its consumer did not send."""
        self.bytes_in_hand = 0
        """Of the messages in hand."""
        self._most_bytes = most_bytes
        self._name = f"{stream}/{consumer}"
        self._subject = f"{NEXT}{stream}.{consumer}"
        self._sender = ["$JS", "ACK", stream, consumer]
        self._on_message = on_message
        self._silence_s = (2.5 * heartbeat_s if heartbeat_s else expires_s) + _GRACE_S
        self._expires_ns = int(expires_s * NS)
        self._idle_s = idle_s
        self._body: dict[str, object] = {"expires": self._expires_ns}
        if heartbeat_s:
            self._body["idle_heartbeat"] = int(heartbeat_s * NS)
        if group is not None:
            self._body["group"] = group
        if priority is not None:
            self._body["priority"] = priority
        if most_bytes is not None:
            self._body["max_bytes"] = most_bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscription: Subscription | None = None
        self._stop_hearing: Callable[[], None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._refused = ""
        """The status that pulls end with at the moment, if it is one of trouble."""
        self._started = self._paused = self._stopped = False

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to pull. It goes on over reconnects until `drain` or `close`, after which it never begins.

        Raises Unreachable and Disconnected: then it may be started again.
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
        if self._stopped:  # meanwhile; it has not pulled, so nothing comes
            await subscription.close()
            return
        self._subscription = subscription
        self._stop_hearing = self.bus.on_back(self._start_over)
        self._start_over()
        self._watch()

    def pause(self) -> None:
        """Ask for no more. What the server still sends goes back to it, to come again a second later."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._subscription is not None:
            self._pull()

    @property
    def running(self) -> bool:
        """Whether it was started and neither drained nor closed."""
        return self._subscription is not None

    @property
    def paused(self) -> bool:
        return self._paused

    async def drain(self) -> None:
        """Take no more, and wait for the handlers that run. Pulls end at once; `close` comes after."""
        await self._stop()
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def close(self) -> None:
        """Take no more, and cancel the handlers that run. Idempotent."""
        await self._stop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _stop(self) -> None:
        """Give up the inbox, and with it the pulls. What the server sent before it knew goes back."""
        self._stopped = True
        for timer in (self._watchdog, self._retry):
            if timer is not None:
                timer.cancel()
        if self._stop_hearing is not None:
            self._stop_hearing()
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            await subscription.close()

    # --- asking -----------------------------------------------------------------------------------

    def _pull(self) -> None:
        """Ask for as much as slots are free, unless so little that it can wait."""
        free = self.slots - self.in_hand - self.requested
        if free < 1 or self._paused or self._retry is not None or self._subscription is None:
            return
        if self.requested and free * 2 < self.slots:
            return  # some are on their way anyhow; a request each would cost more than it brings
        if self._most_bytes is not None and self.bytes_in_hand >= self._most_bytes:
            return  # the next slot that gets free asks again
        body = {"batch": free, **self._body}
        if self._idle_s is not None and not self.in_hand:
            if self.requested:
                return  # a longer pull is for when all others have ended
            idle_s = self._idle_s()
            self._silence_s = idle_s + _GRACE_S
            free = 1
            body |= {"batch": 1, "expires": int(idle_s * NS)}
        if self._refused:  # an idle pull is silent for as long as it lasts; a short one soon says how it went
            body["expires"] = min(self._expires_ns, _PROBE_NS)
            body.pop("idle_heartbeat", None)
        if self.bus.send(self._subject, msgspec.json.encode(body), reply=self._subscription.subject):
            self.requested += free

    def _start_over(self) -> None:
        """Forget what was asked for: with the connection or the leader, the pulls are gone too."""
        self.requested = 0
        self._heard_at = self._loop.time()
        self._pull()

    def _watch(self) -> None:
        """Start over when neither messages nor the ends of pulls have come for too long."""
        if not self.bus.connected:
            pass  # the connection says so, and its return starts over
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

    def _slot_free(self, size: int) -> None:
        self.in_hand -= 1
        self.bytes_in_hand -= size
        self._pull()

    # --- hearing ----------------------------------------------------------------------------------

    def _on_message_in(self, message: Incoming) -> None:
        ack = message.reply.split(".")
        status = 0 if message.reply else message.status
        if not status and not self._sent(ack):
            self._drop(message)
            return
        self._heard_at = self._loop.time()
        if self.bus.conditions:
            self.bus.conditions.clear(PULL_SILENT)
        if status:
            self._on_status(message, status)
        else:
            self._on_delivery(message, ack)

    def _sent(self, ack: list[str]) -> bool:
        """Return True if our consumer wants an acknowledgement at this subject, given as its tokens."""
        return ack[:4] == self._sender and len(ack) == 9 and all(map(_is_number, ack[4:]))

    def _drop(self, message: Incoming) -> None:
        self.dropped += 1
        metrics.dropped_deliveries.add(1, {names.BY: self.bus.name})
        self.bus.conditions.raise_(
            NO_DELIVERY,
            self._name,
            subject=message.subject,
            reply=message.reply,
            size=len(message.data),
        )

    def _on_status(self, message: Incoming, status: int) -> None:
        if status == 100:
            return
        unsent = message.headers.get("Nats-Pending-Messages")
        # An end without a number is the end of everything asked for: nobody was there to take it.
        self.requested = max(0, self.requested - int(unsent)) if unsent else 0
        if status in _QUIET_STATUSES or message.description in _BYTES_REACHED:
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

    def _on_delivery(self, incoming: Incoming, ack: list[str]) -> None:
        self._accepted()
        self.requested = max(0, self.requested - 1)
        message = Message(self, incoming, ack)
        if self._paused or self._stopped or self.in_hand >= self.slots:
            # Over what was asked for: a pull from before a break is still alive at the server.
            message.nak(_PAUSED_NAK_S if self._paused else 0.0)
            self._pull()
            return
        self.in_hand += 1
        self.bytes_in_hand += len(message.data)
        if not self.requested:
            self._pull()  # an idle pull asked for this one alone
        task = self._loop.create_task(self._handle(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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


def _is_number(token: str) -> bool:
    return token.isascii() and token.isdigit()
