"""The queues that a guard takes from: one for each sender, and one for fired timers.

Each queue has slots of its own: a flood keeps only its own sender's slots busy. Queues of new members are
found when the fleet changes.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Mapping

from mesh.bus.connection import Bus
from mesh.bus.consumer import Handler, Puller
from mesh.bus.provision import standing_queues
from mesh.bus.streams import CONTROLS, GUARD_GROUP, QUEUE_CONSUMERS, Kind, kind_of

SLOTS = 4
"""Messages of one sender's partition that a guard works on at once. A sender who floods gets no more.

With fewer the server would send and store nearly one message at a time, which costs it twice as much."""
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
        self._paused = self._leaving = False

    async def find(self) -> None:
        """Begin to take from queues that are new. A bus that is away is waited for."""
        for stream in await self._bus.retry_unavailable(lambda: standing_queues(self._bus)):
            kind = kind_of(stream)
            if stream not in self._pullers and kind is not None:
                self._pullers[stream] = [
                    self._puller(stream, self._handlers[kind], partition)
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
