"""A guard's own partitions and their queues: one for each sender, and one for fired timers."""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.consumer import Handler, Puller
from mesh.bus.nats_protocol import Incoming
from mesh.bus.provision import stored_queues
from mesh.bus.streams import CONTROLS, GUARD_GROUP, kind_of, proposals_of, queue_consumer
from mesh.bus.streams import Kind as QueueKind
from mesh.errors import Denied
from mesh.service.logs import get_logger
from protocol.wire import codec
from protocol.wire.config import Fleet
from protocol.wire.subjects import GUARD_BEATS

_log = get_logger(__name__)

# --- which partitions are this guard's ------------------------------------------------------------
# Guards exchange heartbeats several times a second, with the partitions that they hold. From the same names
# each of them computes the same even division. A guard takes its new partitions at once, and releases
# another's partition once the other reports that it holds it. So no partition is without a guard for longer
# than it takes to notice a silence (ADR 46). This divides work; it is not a lock. While a partition changes
# hands, two guards may have it. Then they are slower but never wrong, since each event is appended by
# compare-and-set.

BEAT_S = 0.5
"""Interval of heartbeats. A guard also sends one at once when its partitions change or a new guard
appears."""
SILENT = 4
"""A guard counts as gone after this many own beats without one from it: after 2 to 2.5 s."""
GATHER_S = 0.1
"""How long a new guard waits for the others' answers. One that begins too early holds too much for a
moment."""
HANDOVER_S = 1.0
"""How long a leaving guard waits at most for others to take over its partitions."""


class Beat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One heartbeat of a guard."""

    guard: str
    """Its identity plus a random part, so that two processes under one identity are two guards."""
    holds: frozenset[int] = frozenset()
    """Partitions from which it takes messages."""
    leaves: bool = False


class Roster:
    """What a guard knows of the others, and which partitions follow for it. No I/O and no clock: see `tick`.

    Args:
        own: this guard's name among the others.
        partitions: how many the mesh has.
    """

    def __init__(self, own: str, partitions: int) -> None:
        self.own = own
        self.held: frozenset[int] = frozenset()
        """Partitions from which this guard takes messages."""
        self.mine: frozenset[int] = frozenset()
        """Partitions from which it should take messages."""
        self.leaves = False
        self._partitions = partitions
        self._others: dict[str, Beat] = {}
        self._ages: dict[str, int] = {}
        """Ticks since the last beat of each other guard."""
        self._members: frozenset[str] = frozenset()
        self._owners: Mapping[int, str] = {}
        self._unheld: dict[int, int] = {}
        """Ticks for which no guard has held a partition."""
        self._began = False

    @property
    def others(self) -> frozenset[str]:
        """Guards that could take over this guard's partitions."""
        return frozenset(name for name, beat in self._others.items() if not beat.leaves)

    def hear(self, beat: Beat) -> bool:
        """Record another guard's heartbeat; return True if that guard is new."""
        is_new = beat.guard not in self._others
        self._others[beat.guard] = beat
        self._ages[beat.guard] = 0
        self._settle()
        return is_new

    def begin(self) -> None:
        """Begin to own partitions, now that the others have answered."""
        self._began = True
        self._settle()

    def tick(self) -> None:
        """Advance the time by one heartbeat interval."""
        for name in tuple(self._ages):
            self._ages[name] += 1
            if self._ages[name] > SILENT:
                del self._ages[name], self._others[name]
        held = frozenset().union(self.held, *(beat.holds for beat in self._others.values()))
        self._unheld = {p: self._unheld.get(p, 0) + 1 for p in range(self._partitions) if p not in held}
        self._settle()

    def leave(self) -> None:
        """Take this guard out of the division. It keeps its partitions until others hold them."""
        self.leaves = True
        self._settle()

    def _settle(self) -> None:
        members = self.others if self.leaves else self.others | {self.own}
        if members != self._members:
            self._members, self._owners = members, divide(members, self._partitions)
        if self._began:
            self.mine = frozenset(filter(self._is_mine, range(self._partitions)))

    def _is_mine(self, partition: int) -> bool:
        owner = self._owners.get(partition)
        if owner == self.own:
            return True
        holders = [name for name in self.others if partition in self._others[name].holds]
        if (
            partition in self.mine
        ):  # kept, unless its owner holds it, or another guard that stands in for the owner
            return owner not in holders and all(
                _rank(self.own, partition) < _rank(name, partition) for name in holders
            )
        return not self.leaves and not holders and self._unheld.get(partition, 0) > SILENT


def divide(guards: Iterable[str], partitions: int) -> dict[int, str]:
    """Return the guard of each partition. Loads differ by at most one.

    Rendezvous hashing (Thaler, Ravishankar 1998) with a bounded load (Mirrokni, Thorup, Zadimoghaddam 2018):
    the best pairs of guard and partition come first, as long as the guard has room. All guards that know the
    same names get the same division, and most partitions stay where they are when a guard comes or goes.
    """
    names = list(guards)
    if not names:
        return {}
    least, more = divmod(partitions, len(names))
    owners: dict[int, str] = {}
    loads = dict.fromkeys(names, 0)
    pairs = ((_rank(name, partition), partition, name) for name in names for partition in range(partitions))
    for _, partition, name in sorted(pairs):
        if partition in owners or loads[name] > least or (loads[name] == least and not more):
            continue
        more -= loads[name] == least
        loads[name] += 1
        owners[partition] = name
    return owners


def _rank(guard: str, partition: int) -> bytes:
    """Return a guard's rank for a partition; the lowest is first."""
    return hashlib.sha256(f"{guard}/{partition}".encode()).digest()


class PartitionAssignment:
    """The partitions of one guard, kept up to date by heartbeats.

    Args:
        identity: this guard's identity, for people.
    """

    def __init__(self, bus: Bus, identity: str) -> None:
        self.mine: frozenset[int] = frozenset()
        """This guard's current partitions, numbered from 0; none before `start`."""
        self._bus = bus
        self._roster = Roster(f"{identity}/{secrets.token_hex(4)}", 0)
        self._callbacks: list[Callable[[], None]] = []
        self._heard_itself = asyncio.Event()
        self._alone = False

    @property
    def own(self) -> str:
        """This guard's name among the others."""
        return self._roster.own

    @property
    def others(self) -> frozenset[str]:
        """The other running guards."""
        return self._roster.others

    async def start(self, partitions: int) -> None:
        """Begin to share this many partitions. Waits while the bus is away."""
        self._roster = Roster(self._roster.own, partitions)
        try:
            await self._bus.retry_unavailable(lambda: self._bus.subscribe(GUARD_BEATS, self._on_beat))
        except Denied:  # a server whose accounts were written by an older version
            _log.warning("guards_not_heard", hint="run `mesh setup`, and reload the server")
            self._alone = True
        else:
            self._beat()
            await asyncio.sleep(GATHER_S)
        self._roster.begin()
        self._become()

    async def keep(self) -> None:
        """Send and evaluate heartbeats. Runs until cancelled."""
        while not self._alone:
            self._heard_itself.clear()
            self._beat()
            await asyncio.sleep(BEAT_S)
            # A guard that does not receive its own beat was frozen, or the bus was. Then others were not
            # silent.
            if self._heard_itself.is_set():
                self._roster.tick()
                self._become()

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each change of `mine`. Return a function that stops this."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def hold(self, partitions: Iterable[int]) -> None:
        """Announce the partitions from which this guard now takes messages, so that others release them."""
        held = frozenset(partitions)
        if held != self._roster.held:
            self._roster.held = held
            self._beat()

    async def leave(self, most_s: float = HANDOVER_S) -> None:
        """Hand over to other guards, and wait until they have taken over, `most_s` at most."""
        self._roster.leave()
        self._beat()
        left = asyncio.Event()
        stop = self.on_change(left.set)
        try:
            async with asyncio.timeout(most_s):
                self._become()
                while self.mine and self._roster.others:
                    left.clear()
                    await left.wait()
        except TimeoutError:
            pass
        finally:
            stop()

    def _beat(self) -> None:
        if not self._alone:
            roster = self._roster
            beat = Beat(guard=roster.own, holds=roster.held, leaves=roster.leaves)
            self._bus.send(GUARD_BEATS, msgspec.json.encode(beat))

    def _on_beat(self, message: Incoming) -> None:
        beat = codec.readable(message.data, Beat)
        if beat is None:
            return
        if beat.guard == self._roster.own:
            self._heard_itself.set()
            return
        if self._roster.hear(beat):
            self._beat()  # it is new, and does not know this guard yet
        self._become()

    def _become(self) -> None:
        if self._roster.mine != self.mine:
            self.mine = self._roster.mine
            for callback in tuple(self._callbacks):
                callback()


# --- the queues of these partitions ---------------------------------------------------------------

SLOTS = 4
"""Concurrent messages of one sender and partition in a guard. A flooding sender gets no more."""
MOST = 16
"""The same while there is no backlog: the more messages travel together, the less each one costs."""
IDLE_PULLS_PER_S = 100
"""Most pulls that all idle guards together send per second, over all queues."""


class Queues:
    """Takes messages from every queue that `find` has found (each sender's, and fired timers), until `drain`.

    Each queue has its own slots, and fewer of them while it has a backlog. So a flood occupies only a few
    slots of its own sender.

    Args:
        handlers: handler of messages for each kind of queue.
        fleet: returns the fleet, which sets the number of partitions and the duration of pulls.
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
        """Pullers by queue and partition."""
        self._left: set[Puller] = set()
        """Pullers of released partitions, while their handlers are still running."""
        self._matching = asyncio.Lock()
        self._changed = asyncio.Event()
        self._paused = self._leaving = False
        assignment.on_change(self._changed.set)

    async def find(self) -> None:
        """Begin to take from new queues. Waits while the bus is away."""
        for stream in await self._bus.retry_unavailable(lambda: stored_queues(self._bus)):
            kind = kind_of(stream)
            if kind is not None:
                self._streams[stream] = kind
        await self._match()

    async def follow(self) -> None:
        """Take from partitions that become this guard's, and release others. Runs until cancelled."""
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
            await self._release(key for key in self._pullers if key[1] not in mine)

    async def _take(self, partition: int) -> None:
        """Begin to take from every queue of a partition."""
        for stream, kind in self._streams.items():
            if (stream, partition) not in self._pullers:
                puller = self._pullers[stream, partition] = self._puller(stream, kind, partition)
                if self._paused and kind != CONTROLS:
                    puller.pause()
        pullers = [self._pullers[stream, partition] for stream in self._streams]
        await asyncio.gather(
            *(self._bus.retry_unavailable(each.start) for each in pullers if not each.running)
        )

    async def _release(self, keys: Iterable[tuple[str, int]]) -> None:
        """Stop taking from these; messages in progress are finished here."""
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
        """Return the duration of an idle pull: longer with many queues, so that idling costs no more."""
        fleet = self._fleet()
        return max(fleet.guard_pull_s, len(self._streams) * fleet.partitions / IDLE_PULLS_PER_S)

    def waits(self, sender: str, partition: int) -> bool:
        """Return True if proposals of a sender wait in its queue, besides those in progress here."""
        puller = self._pullers.get((proposals_of(sender), partition))
        return puller is not None and puller.waiting > 0

    def pause(self, *, paused: bool = True) -> None:
        """Take only control messages; with `paused=False`, take all messages again."""
        self._paused = paused
        for (stream, _), puller in self._pullers.items():
            if kind_of(stream) == CONTROLS:
                continue
            if paused:
                puller.pause()
            else:
                puller.resume()

    async def drain(self, grace_s: float) -> None:
        """Take nothing more and finish work in progress. What takes longer than `grace_s` comes again."""
        self._leaving = True
        pullers = [*self._pullers.values(), *self._left]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*(puller.drain() for puller in pullers))
        await asyncio.gather(*(puller.close() for puller in pullers))
