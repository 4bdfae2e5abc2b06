"""The requests that a guard keeps in memory, their weight, and which one is evicted when there are too many.

A request that is not cached is read and folded from its first event on, at 12 µs per event, for every new
event. So the cache counts what a ledger really keeps, and evicts requests that are over first.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import random
from weakref import WeakValueDictionary

from mesh.bus import stores
from mesh.bus.connection import Bus
from mesh.errors import SequenceConflict
from protocol.domain.decider import RequestDecider
from protocol.domain.ledger import Ledger
from protocol.wire import events
from protocol.wire.events import AnyEvent

MOST_BYTES = 96 << 20
"""Most bytes for all cached requests: about 2,000 requests of six events of 1.5 KB."""
_OBJECT_BYTES, _MAP_BYTES = 64, 240
"""Most bytes of a value and of an object in CPython 3.11, besides their text."""
_TURN_BYTES, _NAME_BYTES, _MODEL_BYTES, _FACT_BYTES = 1_500, 100, 400, 600
"""What remains of an ended turn, for each name in its path, for each model it used, and for each fact."""
_LOOSE_BYTES = 256 << 10
"""Largest weight of the newest events before the history of their facts is condensed."""
_BETWEEN = bytes(set(range(256)) - set(b",:[{"))
"""All bytes except those that separate values. Removing them in one pass costs a third of four counts."""
_SPARED = 0.75
"""Probability with which an open request is spared when one has to be evicted."""
_KEPT = frozenset(
    {
        events.RequestOpened,
        events.MoveDeferred,
        events.FactsWithheld,
        events.EscalationResolved,
        events.TurnDelegated,
        events.FactsPosted,
        events.TaskDelivered,
        events.TaskFailed,
        events.TaskCancelled,
    }
)
"""Events of which a ledger keeps more than the turn that they open."""


def weight(body: bytes) -> int:
    """Return approximately how many bytes of memory a stored event takes, both decoded and as bytes.

    A list of empty lists takes twenty times its JSON. Counting the separators avoids walking over the values.
    """
    separators = body.translate(None, _BETWEEN)
    objects = separators.count(b"{")
    return 2 * len(body) + _OBJECT_BYTES * (len(separators) - objects) + _MAP_BYTES * objects


def _left_by(event: AnyEvent) -> int:
    """Return approximately how many bytes remain of an event whose turn is over."""
    left, work, report = _TURN_BYTES, event.work, event.report
    if work is not None:
        left += _NAME_BYTES * len(work.path) + 4 * len(work.handoff.summary)
    return left if report is None else left + _MODEL_BYTES * len(report.usage.models)


@dataclass(slots=True)
class Timer:
    """The schedule of a request as this guard last saw it."""

    seq: int | None
    """Sequence that the next compare-and-set must name; 0 if there is none, None to replace any."""
    at: int | None
    """UTC µs; None if there is no schedule."""


@dataclass(slots=True)
class CachedRequest:
    """One request: its decider, the sequences of its events, and its timer (None: unknown)."""

    decider: RequestDecider = field(default_factory=RequestDecider)
    placed: "array[int]" = field(default_factory=lambda: array("q"))
    """The stream sequence of each event, by its number."""
    timer: Timer | None = None
    _weights: "array[int]" = field(default_factory=lambda: array("q"))
    """Weight of each event, by its number."""
    _left: int = 0
    """What remains of the older events once their turns are over."""
    _loose: int = 0
    """Weight of the newer events, whose facts the ledger's history has not condensed yet."""
    _loose_left: int = 0
    """What will remain of the newer events."""
    _loose_from: int = 0
    """Number of the first newer event."""

    @property
    def ledger(self) -> Ledger:
        return self.decider.ledger

    @property
    def seq(self) -> int:
        """The stream sequence of the head; 0 without events."""
        return self.placed[-1] if self.placed else 0

    @property
    def weight(self) -> int:
        """Approximate bytes of memory that it takes."""
        ledger, weighs = self.ledger, self._left + self._loose
        if first := self._loose_from:
            whole = {n for turn in ledger.open.values() for n in (turn.round_n, turn.since_n) if n < first}
            weighs += sum(self._weights[n] for n in whole)
        return weighs + _FACT_BYTES * len(ledger.history)

    def wakes(self, at: int, now: int) -> bool:
        """Return True if the timer is known to wake the request by `at` (both in UTC µs)."""
        return self.timer is not None and self.timer.at is not None and now < self.timer.at <= at

    def stored(self, event: AnyEvent, body: bytes, seq: int) -> None:
        """Record that the next event was stored as `body` at `seq`."""
        weighs = weight(body)
        if self._loose > _LOOSE_BYTES:
            self.ledger.history.condense()
            self._left += self._loose_left
            self._loose, self._loose_left, self._loose_from = 0, 0, len(self.placed)
        self.placed.append(seq)
        self._weights.append(weighs)
        self._loose += weighs
        self._loose_left += weighs if type(event) in _KEPT else _left_by(event)


class Cache:
    """Requests up to a limit of memory, and a lock for each request in use.

    Requests that are over are evicted first, least recently used first. Among open requests, an old one is
    chosen at random: if requests used in rotation are slightly too large together, strict LRU would evict
    each of them just before its next use.

    Args:
        chance: returns a number from 0 to 1.
    """

    def __init__(self, most_bytes: int = MOST_BYTES, chance: Callable[[], float] = random) -> None:
        self._most = most_bytes
        self._chance = chance
        self.held = 0
        """Bytes of memory of the cached requests, as of when each was last put."""
        self._open: OrderedDict[str, tuple[CachedRequest, int]] = OrderedDict()
        self._over: OrderedDict[str, tuple[CachedRequest, int]] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._open) + len(self._over)

    def get(self, request: str) -> CachedRequest | None:
        among = self._open if request in self._open else self._over
        found = among.get(request)
        if found is None:
            return None
        among.move_to_end(request)
        return found[0]

    def put(self, request: str, cached: CachedRequest) -> None:
        """Keep a request, and weigh it, since it may have grown. A request above the limit is not kept."""
        self.drop(request)
        weighs = cached.weight
        if weighs > self._most:
            return
        among = self._open if cached.ledger.is_open else self._over
        among[request] = cached, weighs
        self.held += weighs
        while self.held > self._most:
            self._evict()

    def _evict(self) -> None:
        if not self._over:
            while self._chance() < _SPARED:
                self._open.move_to_end(next(iter(self._open)))
        _, (_, weighed) = (self._over or self._open).popitem(last=False)
        self.held -= weighed

    def drop(self, request: str) -> None:
        found = self._open.pop(request, None) or self._over.pop(request, None)
        if found is not None:
            self.held -= found[1]

    def lock(self, request: str) -> asyncio.Lock:
        """Return the lock of `request`, under which it is processed. The lock exists while it is in use."""
        lock = self._locks.get(request)
        if lock is None:
            lock = self._locks[request] = asyncio.Lock()
        return lock


# --- a request's timer ----------------------------------------------------------------------------


async def arm_timer(
    bus: Bus, cached: CachedRequest, request: str, at: int, now: int, partitions: int
) -> None:
    """Arm the request's timer, unless it already fires early enough. It is only ever moved to earlier.

    Args:
        at: latest UTC µs at which to wake the request.
        partitions: how many the mesh has.

    Raises BusError.
    """
    current = cached.timer
    if current is None or (current.at is not None and current.at <= now):
        current = await _current_timer(bus, request)
    while current.at is None or current.at > at:
        try:
            seq = await stores.arm_schedule(bus, request, at, partitions, after=current.seq)
            current = Timer(seq, at)
        except SequenceConflict:
            current = await _current_timer(bus, request)
    cached.timer = current


async def _current_timer(bus: Bus, request: str) -> Timer:
    try:
        found = await stores.current_schedule(bus, request)
    except ValueError:
        return Timer(None, None)  # it has no readable time, so it is replaced
    return Timer(0, None) if found is None else Timer(found[0], found[1])
