"""The queues of a guard: one for each sender, and fired timers, of the partitions that are its own."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping

from mesh.bus.connection import Bus
from mesh.bus.consumer import Handler, Puller
from mesh.bus.provision import standing_queues
from mesh.bus.streams import CONTROLS, GUARD_GROUP, kind_of, queue_consumer
from mesh.bus.streams import Kind as QueueKind
from mesh.guard.assignment import PartitionAssignment
from protocol.wire.config import Fleet

SLOTS = 4
"""Messages of one sender's partition that a guard works on at once. A sender who floods gets no more."""
MOST = 16
"""The same while the partition has no backlog: the more messages travel together, the less each one costs."""
IDLE_PULLS_PER_S = 100
"""Pulls that all guards without work send each second at most, of all queues together."""


class Queues:
    """Takes from every queue once `find` has found it, until `drain`: one for each sender, and fired timers.

    Each queue has slots of its own, and fewer of them while it has a backlog. So a flood keeps only its own
    sender's few slots busy.

    Args:
        handlers: what takes a message of each kind of queue.
        fleet: returns the fleet: it says how many partitions there are and how long a pull lasts.
    """

    def __init__(
        self,
        bus: Bus,
        assignment: PartitionAssignment,
        handlers: Mapping[QueueKind, Handler],
        fleet: Callable[[], Fleet],
    ) -> None:
        self._bus = bus
        self._assignment = assignment
        self._handlers = handlers
        self._fleet = fleet
        self._streams: dict[str, QueueKind] = {}
        self._pullers: dict[tuple[str, int], Puller] = {}
        """By queue and partition."""
        self._left: set[Puller] = set()
        """Those of partitions that were let go, while handlers still run."""
        self._matching = asyncio.Lock()
        self._changed = asyncio.Event()
        self._paused = self._leaving = False
        assignment.on_change(self._changed.set)

    async def find(self) -> None:
        """Begin to take from queues that are new. A bus that is away is waited for."""
        for stream in await self._bus.retry_unavailable(lambda: standing_queues(self._bus)):
            kind = kind_of(stream)
            if kind is not None:
                self._streams[stream] = kind
        await self._match()

    async def follow(self) -> None:
        """Take from the partitions that become this guard's, and let go of others. Runs until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._match()

    async def _match(self) -> None:
        async with self._matching:
            mine = self._assignment.mine
            for partition in sorted(mine):
                if self._leaving:
                    return
                await self._take(partition)
            self._assignment.hold(mine)
            await self._let_go(key for key in self._pullers if key[1] not in mine)

    async def _take(self, partition: int) -> None:
        """Take from every queue of a partition."""
        for stream, kind in self._streams.items():
            if (stream, partition) not in self._pullers:
                puller = self._pullers[stream, partition] = self._puller(stream, kind, partition)
                if self._paused and kind != CONTROLS:
                    puller.pause()
        pullers = [self._pullers[stream, partition] for stream in self._streams]
        await asyncio.gather(
            *(self._bus.retry_unavailable(each.start) for each in pullers if not each.running)
        )

    async def _let_go(self, keys: Iterable[tuple[str, int]]) -> None:
        """Take no more of these; messages that are in hand are finished here."""
        left = [self._pullers.pop(key) for key in tuple(keys)]
        self._left = {each for each in self._left if each.in_hand} | set(left)
        await asyncio.gather(*(each.stop() for each in left))

    def _puller(self, stream: str, kind: QueueKind, partition: int) -> Puller:
        return Puller(
            self._bus,
            stream,
            queue_consumer(partition),
            self._handlers[kind],
            slots=SLOTS,
            most=MOST,
            expires_s=self._fleet().guard_pull_s,
            idle_s=self._idle_s,
            group=GUARD_GROUP,
            priority=0,
        )

    def _idle_s(self) -> float:
        """Return how long an idle pull lasts: with many queues longer, so that idling costs no more."""
        fleet = self._fleet()
        return max(fleet.guard_pull_s, len(self._streams) * fleet.partitions / IDLE_PULLS_PER_S)

    def pause(self, *, paused: bool = True) -> None:
        """Take only control messages, or all of them again."""
        self._paused = paused
        for (stream, _), puller in self._pullers.items():
            if kind_of(stream) == CONTROLS:
                continue
            if paused:
                puller.pause()
            else:
                puller.resume()

    async def drain(self, grace_s: float) -> None:
        """Take nothing more and finish what is in hand; what takes longer than `grace_s` comes again."""
        self._leaving = True
        pullers = [*self._pullers.values(), *self._left]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*(puller.drain() for puller in pullers))
        await asyncio.gather(*(puller.close() for puller in pullers))
