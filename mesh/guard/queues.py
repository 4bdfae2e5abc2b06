"""The queues that a guard takes from: one for each sender, and one for fired timers.

Each queue has slots of its own, and senders are served in turn: a flood keeps only its own sender's slots
busy. What operators say waits for no turn. Queues of new members are found when the fleet changes.
"""

import asyncio
import contextlib
import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping

from mesh.bus.connection import Bus
from mesh.bus.consumer import Handler, Message, Puller
from mesh.bus.provision import standing_queues
from mesh.bus.streams import CONTROLS, GUARD_GROUP, QUEUE_CONSUMERS, Kind, kind_of

SLOTS = 4
"""Messages of one sender's partition that a guard has in hand at most."""
AT_ONCE = 8
"""Messages that it works on at once: as many as keep it busy while its appends are on their way."""
IDLE_PULLS_PER_S = 100
"""Pulls that a guard without work sends each second at most, of all queues together."""


class Queues:
    """Takes from every queue once `find` has found it, until `drain`.

    Args:
        identity: this guard's; it gives its place in line for each partition, the same in every queue.
        handlers: what takes a message of each kind of queue.
        expires_s: how long a pull lasts.
    """

    def __init__(
        self, bus: Bus, identity: str, handlers: Mapping[Kind, Handler], expires_s: Callable[[], float]
    ) -> None:
        self._bus = bus
        self._identity = identity
        self._handlers = handlers
        self._expires_s = expires_s
        self._pullers: dict[str, list[Puller]] = {}
        self._turns = Turns(AT_ONCE)
        self._paused = self._leaving = False

    async def find(self) -> None:
        """Begin to take from queues that are new. A bus that is away is waited for."""
        for stream in await self._bus.retry_unavailable(lambda: standing_queues(self._bus)):
            kind = kind_of(stream)
            if stream not in self._pullers and kind is not None:
                self._pullers[stream] = [
                    self._puller(stream, self._in_turn(stream, self._handlers[kind]), partition)
                    for partition in range(len(QUEUE_CONSUMERS))
                ]
        for stream, pullers in self._pullers.items():
            for puller in pullers:
                if self._paused and kind_of(stream) != CONTROLS:
                    puller.pause()
                if self._leaving:
                    return
                if not puller.running:
                    await self._bus.retry_unavailable(puller.start)

    def _in_turn(self, stream: str, handler: Handler) -> Handler:
        if stream == CONTROLS:
            return handler

        async def handle(message: Message) -> None:
            await self._turns.take(stream)
            try:
                await handler(message)
            finally:
                self._turns.give_back()

        return handle

    def _puller(self, stream: str, handler: Handler, partition: int) -> Puller:
        return Puller(
            self._bus,
            stream,
            QUEUE_CONSUMERS[partition],
            handler,
            slots=SLOTS,
            expires_s=self._expires_s(),
            idle_s=self._idle_s,
            group=GUARD_GROUP,
            priority=self._priority(partition),
        )

    def _idle_s(self) -> float:
        """Return how long an idle pull lasts: with many queues longer, so that idling costs no more."""
        return max(self._expires_s(), len(self._pullers) * len(QUEUE_CONSUMERS) / IDLE_PULLS_PER_S)

    def _priority(self, partition: int) -> int:
        """Return 0 to 9: where this guard stands in line for a partition. No list of members is needed."""
        digest = hashlib.sha256(f"{self._identity}/{partition}".encode()).digest()
        return digest[0] % 10

    def pause(self, *, paused: bool = True) -> None:
        """Take only control messages, or all of them again."""
        self._paused = paused
        for stream, pullers in self._pullers.items():
            for puller in pullers if kind_of(stream) != CONTROLS else ():
                if paused:
                    puller.pause()
                else:
                    puller.resume()

    async def drain(self, grace_s: float) -> None:
        """Take nothing more and finish what is in hand; what takes longer than `grace_s` comes again."""
        self._leaving = True
        pullers = [puller for listed in self._pullers.values() for puller in listed]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*(puller.drain() for puller in pullers))
        await asyncio.gather(*(puller.close() for puller in pullers))


class Turns:
    """Gives so many turns at once, to senders one after the other. Used on one event loop.

    A guard works on a few messages at once, so that it is busy while its appends are on their way. More would
    only make each of them slower: they share one processor. A sender that waits is served after one message
    of each other sender that waits.
    """

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By sender, in the order in which they are served next."""

    async def take(self, sender: str) -> None:
        """Wait for a turn of `sender`; it lasts until `give_back`."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(sender)

    async def _wait(self, sender: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(sender, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # it was given at the same moment
            raise

    def give_back(self) -> None:
        """End a turn; the next sender that waits gets it."""
        while self._waiting:
            sender, waiting = self._waiting.popitem(last=False)
            turn = waiting.popleft()
            if waiting:
                self._waiting[sender] = waiting  # behind all others
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
