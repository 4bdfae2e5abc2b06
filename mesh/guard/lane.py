"""The lane: senders ask guards over core NATS, and store their message only if that fails.

A guard answers once the verdict is in the log. If no guard takes a question, the sender learns at once that
there are no responders. If the guard cannot decide it, the answer says so. If it is lost with its guard,
there is no answer. In each case the sender stores the same message in its queue, and everything continues as
without the lane.

The broker limits what a guard has in progress. For each sender in each of its partitions, a guard subscribes
for as many messages as it has places; then the server ends the subscription by itself (`UNSUB <sid> <n>`).
The guard offers places again when half of them are free, but none while older messages of the sender wait in
its queue. So a flood fills only its sender's places. The lane has its own connection, so that nothing on it
can cut off the queues.
"""

import asyncio
import functools
import time
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import product
from typing import Literal

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming
from mesh.bus.streams import GUARD_GROUP
from mesh.guard.queues import PartitionAssignment
from mesh.service.failpoints import failpoint
from mesh.service.logs import get_logger
from protocol.wire import codec, subjects
from protocol.wire.config import Fleet
from protocol.wire.records import LaneAnswer

_log = get_logger(__name__)

PLACES = 32
"""Concurrent questions of one sender and partition in a guard."""
FEW = 4
"""The same for `_FLOOD_S` after a sender has used them all up."""
_FLOOD_S = 1.0
_QUEUED_S = 0.02
"""Pause before checking again a queue in which messages wait."""
_DOUBT_S = 0.02
"""How long to wait for a message that shows that a subscription is still alive."""
_LATE_S = 5.0
"""How long messages may still arrive that the server sent before it ended a subscription."""

Decide = Callable[[Incoming], Awaitable[bool]]
State = Literal["open", "off", "paused", "denied", "away"]
"""State of a guard's lane. `open`: it takes questions; `off`: the fleet has no lane; `paused`: the mesh is
frozen; `denied`: the server's accounts do not have the lane; `away`: no connection, or the guard is
leaving."""


class GuardLane:
    """Takes questions from `follow` until `drain`, while the fleet has a lane and the mesh is not frozen.

    Args:
        bus: the guard's connection; the lane opens another one besides it.
        fleet: returns the current fleet.
        assignment: this guard's partitions.
        decide: decides one question; returns True once its verdict is in the log. It must not raise.
        waits: returns True if messages of a sender and partition wait in its queue.
    """

    def __init__(
        self,
        bus: Bus,
        fleet: Callable[[], Fleet],
        assignment: PartitionAssignment,
        decide: Decide,
        waits: Callable[[str, int], bool],
    ) -> None:
        self._queues_bus = bus
        self._bus: Bus | None = None
        self._fleet = fleet
        self._assignment = assignment
        self._decide = decide
        self._waits = waits
        self._places: dict[tuple[str, int], _Places] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused = self._leaving = False
        assignment.on_change(self._arrange)

    @property
    def state(self) -> State:
        """The state of the lane."""
        if not self._fleet().lane:
            return "off"
        if self._paused:
            return "paused"
        if self._bus is None or not self._bus.connected or self._leaving:
            return "away"
        return "denied" if self._is_denied() else "open"

    @property
    def open(self) -> bool:
        """True if it takes questions."""
        return bool(self._places) and self.state == "open"

    def _is_denied(self) -> bool:
        assert self._bus is not None
        return any(denied.operation == "subscribe to" for denied in self._bus.denials)

    async def follow(self) -> None:
        """Take questions of the current fleet's members. Returns once the server knows. Raises BusError."""
        if self._bus is None and self._fleet().lane and not self._leaving:
            bus = await self._queues_bus.beside()
            if self._leaving:  # in the meantime
                await bus.close()
                return
            self._bus = bus
            bus.conditions.quiet = True  # the guard's own connection reports the same
            bus.on_back(self._start_over)
        if self._bus is not None and self._is_denied():
            self._start_over()  # the server may have newer accounts by now
        self._arrange()
        if self._bus is not None:
            await self._bus.flush()
            if self._is_denied():  # the accounts were written by an older version
                _log.warning("lane_denied", hint="run `mesh setup`, and reload the server")

    def pause(self, *, paused: bool = True) -> None:
        """Take nothing, so that senders find no responder and store their messages; or take them again."""
        self._paused = paused
        self._arrange()

    async def drain(self, grace_s: float) -> None:
        """Take nothing more and finish questions in progress. After `grace_s` the rest is abandoned."""
        self._leaving = True
        self._arrange()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=grace_s)
        await self.close()

    async def close(self) -> None:
        """Abandon questions in progress. Idempotent."""
        self._leaving = True
        self._arrange()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._bus is not None:
            await self._bus.close()

    # --- places -----------------------------------------------------------------------------------

    def _arrange(self) -> None:
        """Open the places that are needed, and close all others."""
        fleet, wanted = self._fleet(), set[tuple[str, int]]()
        if self._bus is not None and fleet.lane and not (self._paused or self._leaving):
            senders = (*fleet.agents, *fleet.clients, *fleet.operators)
            wanted = set(product(senders, self._assignment.mine))
        for each in [each for each in self._places if each not in wanted]:
            self._places.pop(each).close()
        for sender, partition in wanted - self._places.keys():
            assert self._bus is not None
            subject = subjects.lane_of(sender, partition)
            waits = functools.partial(self._waits, sender, partition)
            places = self._places[sender, partition] = _Places(self._bus, subject, self._take, waits)
            places.offer()

    def _start_over(self) -> None:
        """Subscribe again, since the lane's subscriptions end with their connection."""
        if self._bus is not None:
            self._bus.denials.clear()
        for places in self._places.values():
            places.start_over()

    def _take(self, places: "_Places", asked: Incoming) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(places, asked))
        self._tasks.add(task)

    async def _answer(self, places: "_Places", asked: Incoming) -> None:
        decided = False
        try:
            if asked.reply:  # otherwise the sender could never know, and has to store it
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

    Messages in progress plus messages that the server may still send never exceed `PLACES`. A live
    subscription is extended: then the server only changes a number, while a new subscription makes every
    connection look up its subjects again. But the server may have ended it before it got the extension. A
    message beyond the old end shows that the subscription is alive; if none comes for a moment, it is made
    again.
    """

    def __init__(
        self,
        bus: Bus,
        subject: str,
        take: Callable[["_Places", Incoming], None],
        waits: Callable[[], bool],
    ) -> None:
        self._bus = bus
        self._subject = subject
        self._take = take
        self._waits = waits
        self._in_hand = 0
        self._number = 0
        """Number of the subscription; 0 if there is none."""
        self._received = 0
        """Messages received on this subscription."""
        self._ends = deque[int]()
        """After how many messages the server ends it: first the confirmed number, then later extensions."""
        self._doubt: asyncio.TimerHandle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._few_until = 0.0
        """Until when there are only `FEW` places (monotonic s)."""
        self._closed = False

    def offer(self) -> None:
        """Offer the free places to the broker, unless they are too few to be worth it."""
        offered = self._ends[-1] - self._received if self._number else 0
        most = FEW if time.monotonic() < self._few_until else PLACES
        free = most - self._in_hand - offered
        if self._closed or free * 2 < most or not self._bus.connected:
            return
        if self._waits():
            if self._later is None:
                self._later = asyncio.get_running_loop().call_later(_QUEUED_S, self._offer_again)
            return
        if self._number:
            self._ends.append(self._ends[-1] + free)
            self._bus.extend_listening(self._number, self._ends[-1])
        else:
            self._subscribe(free)

    def _offer_again(self) -> None:
        self._later = None
        self.offer()

    def _subscribe(self, most: int) -> None:
        self._number = self._bus.listen_for(self._subject, GUARD_GROUP, most, self._on_question)
        self._received = 0
        self._ends = deque([most])

    def free(self) -> None:
        """Free the place of a finished question."""
        self._in_hand -= 1
        self.offer()

    def start_over(self) -> None:
        """Offer all free places on a new connection."""
        self._bus.forget(self._number)
        self._number = 0
        self.offer()

    def close(self) -> None:
        """Take no more questions, except those that the server has already sent."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        if self._number:
            self._bus.end_listening_for(self._number)
            asyncio.get_running_loop().call_later(_LATE_S, self._bus.forget, self._number)
        self._number = 0

    def _on_question(self, number: int, asked: Incoming) -> None:
        self._in_hand += 1
        if number == self._number:
            self._received += 1
            while self._ends[0] < self._received:
                self._ends.popleft()
            if self._received == self._ends[0]:
                self._at_an_end()
        self._take(self, asked)

    def _at_an_end(self) -> None:
        """Note that the server ended the subscription, unless an extension reached it in time."""
        if len(self._ends) == 1:
            self._few_until = time.monotonic() + _FLOOD_S
            self._bus.forget(self._number)
            self._number = 0
        elif self._doubt is None:
            self._doubt = asyncio.get_running_loop().call_later(_DOUBT_S, self._if_in_doubt)

    def _if_in_doubt(self) -> None:
        self._doubt = None
        if self._number and self._received == self._ends[0]:
            left = self._ends[-1] - self._received
            self._end()
            if left and not self._closed and self._bus.connected:
                self._subscribe(left)
