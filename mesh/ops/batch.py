"""A batch: many messages in their senders' queues, a few at a time, and what came of each.

Each message's id is made of the batch's and of what it is about. So whoever says a batch again says the same
messages, and a guard decides none of them twice. The events of control messages name these ids (`control`).
So the log itself says what belongs to a batch, and nothing else is kept.
"""

import asyncio
import contextlib
import functools
import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.nats_protocol import Incoming
from mesh.bus.reader import bounds
from mesh.errors import BusError, LogUnreadable, UsageWrong
from protocol.wire import codec, subjects
from protocol.wire.events import AnyEvent, FactsWithheld, RequestOpened, type_of
from protocol.wire.ids import Cause, RequestId, submitted_ms, ulid
from protocol.wire.records import Notice

BEGINNING = "batch-"
_KNOWN = 17
"""Characters of a ULID that tell batches apart: the millisecond, and 35 random bits."""
_BATCH = re.compile(rf"{BEGINNING}[0-7][0-9A-HJKMNP-TV-Z]{{16}}")
_AT_ONCE = 64
"""Messages that are being stored at a time."""
_UNDECIDED = 512
"""Messages in the queues that no guard has decided. More wait here, so that Ctrl-C leaves few behind."""
QUIET_S = 30.0
"""How long it waits for the next decision."""
_WITHHELD = type_of(FactsWithheld)


# --- ids ------------------------------------------------------------------------------------------


def new_batch() -> str:
    """Return the id of a new batch."""
    return BEGINNING + ulid(time.time_ns() // 1_000_000, os.urandom(10))[:_KNOWN]


def checked_batch(text: str) -> str:
    """Return a batch's id. Raises UsageWrong for any other text."""
    if _BATCH.fullmatch(text) is None:
        raise UsageWrong(f"not a batch's id: {text[:40]!r}; they look like `{BEGINNING}01JAZ3N5K7M9P1R3T`")
    return text


def control_id(batch: str, n: int | None = None) -> str:
    """Return the id of a batch's control message for a request, or for what waits there since event `n`."""
    return batch if n is None else f"{batch}-{n}"


def rerun_id(batch: str, client: str, request: str) -> RequestId:
    """Return the id of the request by which a batch does `request` again; it has the batch's characters."""
    known = batch.removeprefix(BEGINNING)
    entropy = hashlib.sha256(f"{batch}\x1f{request}".encode()).digest()[:10]
    at_ms = submitted_ms(f"{client}_{known.ljust(26, '0')}")
    return RequestId(f"{client}_{known}{ulid(at_ms, entropy)[_KNOWN:]}")


def batch_of(event: AnyEvent) -> str:
    """Return the batch to which an event belongs; empty if it belongs to none."""
    if isinstance(event, RequestOpened) and event.rerun_of is not None:
        return BEGINNING + str(event.request).rpartition("_")[2][:_KNOWN]
    found = _BATCH.match(event.control)
    return "" if found is None else found[0]


# --- sending --------------------------------------------------------------------------------------


class Order(NamedTuple):
    """A message of a batch."""

    request: str
    """The request for which it was chosen; of a dead letter, the one that it names."""
    sender: str
    decided_in: str
    """The request in whose log the decision will be: of a rerun, the new one."""
    subject: str
    body: bytes
    cause: Cause
    """By which its event is known."""
    turn: str = ""
    """The turn that it is about, if any."""
    headers: Mapping[str, str] | None = None


Outcome = Literal["done", "before", "over", "refused", "waits"]


class Came(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a message.

    `done`: its event is in the log. `before`: a guard had decided the same message earlier. `over`: what it
    was about had ended. `refused`: a guard did not obey, and kept it as a dead letter. `waits`: it was sent,
    and no guard has decided it so far.
    """

    request: str
    outcome: Outcome
    decided_in: str
    """The request in whose log the decision is: of a rerun, the new one."""
    event: int | None = None
    type: str = ""
    code: str = ""
    detail: str = ""


class Caused(msgspec.Struct, frozen=True):
    """What is read of an event."""

    n: int
    type: str
    cause: str


async def causes_in(bus: Bus, request: str) -> dict[str, Caused]:
    """Return the events of a request by their causes. Raises LogUnreadable, BusError."""
    stored = await JetStreamLog(bus).read(request)
    found = (codec.readable(each.data, Caused) for each in stored)
    return {event.cause: event for event in found if event is not None and event.type != _WITHHELD}


class Batch:
    """The sending of a batch, and what came of it so far.

    Args:
        quiet_s: how long the next decision is waited for.
    """

    def __init__(self, bus: Bus, orders: Sequence[Order], *, quiet_s: float = QUIET_S) -> None:
        self._bus, self._orders, self._quiet_s = bus, orders, quiet_s
        self._following = iter(orders)
        self._open: dict[str, Order] = {}
        """By cause: those that were sent and are not decided."""
        self._asked: dict[tuple[str, str], list[Order]] = {}
        """The same by sender and request, which is what a notice names."""
        self._came: dict[str, Came] = {}
        """By cause."""
        self._looking = set[asyncio.Task[None]]()
        self._room = asyncio.Semaphore(_UNDECIDED)
        self._news = asyncio.Event()

    @property
    def sent(self) -> int:
        """Return how many messages were sent."""
        return len(self._came) + len(self._open)

    @property
    def came(self) -> list[Came]:
        """Return what came of each message that was sent, in the order of the batch."""
        return [
            self._came.get(order.cause)
            or Came(request=order.request, outcome="waits", decided_in=order.decided_in)
            for order in self._orders
            if order.cause in self._came or order.cause in self._open
        ]

    async def run(self, on_progress: Callable[[int], None] = lambda decided: None) -> None:
        """Send all messages, and wait for the decisions. When it is cancelled, `came` says how far it got.

        Args:
            on_progress: is told how many are decided, whenever there are more.

        Raises BusError. Raises TimeoutError if no guard decides anything for a while.
        """
        _, end = await bounds(self._bus, "LOG")
        async with contextlib.AsyncExitStack() as stack:
            for sender in sorted({order.sender for order in self._orders}):
                take = functools.partial(self._take_note, sender)
                listening = await self._bus.subscribe(subjects.notes_to(sender), take)
                stack.push_async_callback(listening.close)
            tasks = [asyncio.create_task(self._watch(end + 1))]
            tasks += [asyncio.create_task(self._send()) for _ in range(_AT_ONCE)]
            try:
                await self._until_decided(tasks[1:], tasks, on_progress)
            finally:
                tasks += self._looking
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self) -> None:
        for order in self._following:
            await self._room.acquire()
            self._open[order.cause] = order
            self._asked.setdefault((order.sender, order.decided_in), []).append(order)
            await self._bus.retry_unavailable(functools.partial(self._store, order))

    async def _store(self, order: Order) -> None:
        await self._bus.publish_durable(order.subject, order.body, order.headers)

    async def _until_decided(
        self,
        sending: Sequence["asyncio.Task[None]"],
        tasks: Sequence["asyncio.Task[None]"],
        on_progress: Callable[[int], None],
    ) -> None:
        for task in tasks:
            task.add_done_callback(lambda _: self._news.set())
        while not all(task.done() for task in sending) or self._open:
            try:
                async with asyncio.timeout(self._quiet_s):
                    await self._news.wait()
            except TimeoutError:
                raise TimeoutError(
                    f"no guard has decided anything for {self._quiet_s:g} s; {len(self._open)} messages "
                    "wait in their queues, and are decided once one does"
                ) from None
            self._news.clear()
            for task in tasks:
                if task.done():
                    task.result()
            on_progress(len(self._came))

    # --- decisions --------------------------------------------------------------------------------

    async def _watch(self, from_seq: int) -> None:
        """Look for the events of this batch in the log."""
        async with contextlib.aclosing(JetStreamLog(self._bus, leader=False).follow(from_seq)) as following:
            async for stored in following:
                event = codec.readable(stored.data, Caused)
                order = None if event is None else self._open.get(event.cause)
                if event is None or order is None or event.type == _WITHHELD:
                    continue
                self._decide(order, "done", event=event.n, type=event.type)

    def _take_note(self, sender: str, message: Incoming) -> None:
        """Take what a guard says to a sender: that it did not obey, or that something was over."""
        notice = codec.readable(message.data, Notice)
        for order in () if notice is None else tuple(self._asked.get((sender, notice.request), ())):
            assert notice is not None
            is_this = notice.digest == codec.body_digest(order.body)
            if notice.error is not None and is_this:
                self._decide(order, "refused", code=notice.error.code, detail=notice.error.detail)
            elif notice.ended is not None and (is_this or notice.ended.turn == order.turn):
                looking = asyncio.create_task(self._look(order, notice.ended.why))
                self._looking.add(looking)
                looking.add_done_callback(self._looking.discard)

    async def _look(self, order: Order, why: str) -> None:
        """Find out what a notice is about: this message's own event ends turns, too."""
        try:
            event = (await causes_in(self._bus, order.decided_in)).get(order.cause)
        except (BusError, LogUnreadable):
            event = None
        if order.cause not in self._open:
            return
        if event is None:
            self._decide(order, "over", code=why)
        else:
            self._decide(order, "before" if why == "decided" else "done", event=event.n, type=event.type)

    def _decide(self, order: Order, outcome: Outcome, **said: Any) -> None:
        self._came[order.cause] = Came(
            request=order.request, outcome=outcome, decided_in=order.decided_in, **said
        )
        del self._open[order.cause]
        self._asked[order.sender, order.decided_in].remove(order)
        self._room.release()
        self._news.set()
