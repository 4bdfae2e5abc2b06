"""The lane: guards are asked over core NATS, by a sender that stores its message only if that fails.

A guard answers once the verdict is in the log. A question that nobody takes has no responders, at once. One
that comes to nothing here is answered so. One that is lost with its guard has no answer. In each case its
sender stores the same message in its queue, and there everything is as without the lane.

The broker bounds what a guard has in hand. A guard subscribes to the questions of each sender in each of its
partitions for as many messages as it has places for; then the server ends the subscription by itself (`UNSUB
<sid> <n>`). The guard subscribes again when half of the places are free. So a flood fills only its sender's
places. The lane has a connection of its own: nothing on it can cut off the queues.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from mesh.bus.streams import GUARD_GROUP
from mesh.guard.assignment import PartitionAssignment
from mesh.service.failpoints import failpoint
from protocol.wire import codec, subjects
from protocol.wire.config import Fleet
from protocol.wire.records import LaneAnswer

PLACES = 8
"""Questions of one sender in one partition that a guard has in hand at once."""
_LATE_S = 5.0
"""How long messages may come that the server had sent before it ended a subscription."""

Decide = Callable[[Incoming], Awaitable[bool]]


class GuardLane:
    """Takes questions from `follow` until `drain`, while the fleet has a lane and the mesh is not frozen.

    Args:
        bus: the guard's connection; the lane opens another one beside it.
        fleet: returns the fleet as it is now.
        assignment: says of which partitions this guard takes questions.
        decide: decides one question; returns True once its verdict is in the log. It does not raise.
    """

    def __init__(
        self, bus: Bus, fleet: Callable[[], Fleet], assignment: PartitionAssignment, decide: Decide
    ) -> None:
        self._queues_bus = bus
        self._bus: Bus | None = None
        self._fleet = fleet
        self._assignment = assignment
        self._decide = decide
        self._places: dict[tuple[str, int], _Places] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused = self._leaving = False
        assignment.on_change(self._arrange)

    @property
    def open(self) -> bool:
        """True if it takes questions."""
        return bool(self._places) and self._bus is not None and self._bus.connected

    async def follow(self) -> None:
        """Take questions of whoever is in the fleet now; return once the server knows. Raises BusError."""
        if self._bus is None and self._fleet().lane and not self._leaving:
            bus = await self._queues_bus.beside()
            if self._leaving:  # meanwhile
                await bus.close()
                return
            self._bus = bus
            bus.on_back(self._start_over)
        self._arrange()
        if self._bus is not None:
            await self._bus.flush()

    def pause(self, *, paused: bool = True) -> None:
        """Take nothing, or all of it again. Senders then find nobody, and store what they have."""
        self._paused = paused
        self._arrange()

    async def drain(self, grace_s: float) -> None:
        """Take nothing more and finish what is in hand; after `grace_s` the rest is given up."""
        self._leaving = True
        self._arrange()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=grace_s)
        await self.close()

    async def close(self) -> None:
        """Give up what is in hand. Idempotent."""
        self._leaving = True
        self._arrange()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._bus is not None:
            await self._bus.close()

    # --- places -----------------------------------------------------------------------------------

    def _arrange(self) -> None:
        """Open the places that should be, and close all others."""
        fleet, wanted = self._fleet(), set[tuple[str, int]]()
        if self._bus is not None and fleet.lane and not (self._paused or self._leaving):
            senders = (*fleet.agents, *fleet.clients, *fleet.operators)
            wanted = set(product(senders, self._assignment.mine))
        for each in [each for each in self._places if each not in wanted]:
            self._places.pop(each).close()
        for sender, partition in wanted - self._places.keys():
            assert self._bus is not None
            subject = subjects.lane_of(sender, partition)
            places = self._places[sender, partition] = _Places(self._bus, subject, self._take)
            places.offer()

    def _start_over(self) -> None:
        """Subscribe anew: subscriptions of the lane end with their connection."""
        for places in self._places.values():
            places.start_over()

    def _take(self, places: "_Places", asked: Incoming) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(places, asked))
        self._tasks.add(task)

    async def _answer(self, places: "_Places", asked: Incoming) -> None:
        decided = False
        try:
            if asked.reply:  # else its sender would never know: it must be stored
                failpoint("guard.asked")
                decided = await self._decide(asked)
                failpoint("guard.answers")
        finally:
            assert self._bus is not None
            answer = LaneAnswer(digest=codec.body_digest(asked.data), decided=decided)
            if asked.reply:
                self._bus.send(asked.reply, msgspec.json.encode(answer))
            places.free()
            self._tasks.discard(asyncio.current_task())


class _Places:
    """The places for one sender's questions in one partition.

    Messages in hand and messages that the server may still send are never more than `PLACES` together.
    """

    def __init__(self, bus: Bus, subject: str, take: Callable[["_Places", Incoming], None]) -> None:
        self._bus = bus
        self._subject = subject
        self._take = take
        self._in_hand = 0
        self._offered: dict[int, int] = {}
        """By subscription: how many messages the server may still send for it."""
        self._closed = False

    def offer(self) -> None:
        """Offer the free places to the broker, unless they are too few to be worth a subscription."""
        free = PLACES - self._in_hand - sum(self._offered.values())
        if self._closed or free * 2 < PLACES or not self._bus.connected:
            return
        number = self._bus.listen_for(self._subject, GUARD_GROUP, free, self._on_question)
        self._offered[number] = free

    def free(self) -> None:
        """Take note that a question is no longer in hand."""
        self._in_hand -= 1
        self.offer()

    def start_over(self) -> None:
        """Offer all free places on a new connection."""
        for number in self._offered:
            self._bus.forget(number)
        self._offered.clear()
        self.offer()

    def close(self) -> None:
        """Take no more. What the server has sent already is still taken."""
        self._closed = True
        for number in self._offered:
            self._bus.end_listening_for(number)
            asyncio.get_running_loop().call_later(_LATE_S, self._bus.forget, number)
        self._offered.clear()

    def _on_question(self, number: int, asked: Incoming) -> None:
        left = self._offered.get(number, 0) - 1
        if left > 0:
            self._offered[number] = left
        elif self._offered.pop(number, None) is not None:
            self._bus.forget(number)
        self._in_hand += 1
        self._take(self, asked)
