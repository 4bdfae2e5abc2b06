"""The cache: requests that this guard decided on lately. It is never the truth, it only saves reading.

A cached request may be behind the log (another guard may have appended). The compare-and-set finds that
out; then it is dropped and read again. The cache is bounded by the memory that it takes: a few large
requests may take as much as thousands of small ones.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from protocol.domain.decider import RequestDecider
from protocol.domain.ledger import Ledger

MOST_BYTES = 96 << 20
"""What all cached requests may take: about 2,000 requests of six events of 1.5 KB."""
_OBJECT_BYTES, _MAP_BYTES = 64, 240
"""What a value and an object take in CPython 3.11, at most, beside the text in them."""


def weight(body: bytes) -> int:
    """Return about how many bytes of memory a stored event takes, decoded and as it is.

    A list of empty lists takes twenty times its JSON. Counting what separates values needs no walk over them.
    """
    values = body.count(b",") + body.count(b":") + body.count(b"[")
    return 2 * len(body) + _OBJECT_BYTES * values + _MAP_BYTES * body.count(b"{")


@dataclass(slots=True)
class Timer:
    """The schedule of a request as this guard last saw it."""

    seq: int | None
    """What the next compare-and-set on it must name; 0 where none stands, None to replace whatever does."""
    at: int | None
    """UTC µs; None where none stands."""


@dataclass(slots=True)
class CachedRequest:
    """One request: its decider, where its events lie, and its timer (None: not known)."""

    decider: RequestDecider = field(default_factory=RequestDecider)
    placed: list[int] = field(default_factory=list)
    """The stream sequence of each event, by its number."""
    timer: Timer | None = None
    weight: int = 0
    """About how many bytes of memory it takes; grows with each event that is applied."""

    @property
    def ledger(self) -> Ledger:
        return self.decider.ledger

    @property
    def seq(self) -> int:
        """The stream sequence of the head; 0 where there is none."""
        return self.placed[-1] if self.placed else 0

    def stored(self, body: bytes, seq: int) -> None:
        """Note where the next event lies: `body` is stored at `seq`."""
        self.placed.append(seq)
        self.weight += weight(body)


class Cache:
    """Dockets up to so many bytes of memory, the longest unused dropped first; a lock for each in hand."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self.held = 0
        """Bytes of memory that the cached requests take, as they were when they were last put."""
        self._requests: OrderedDict[str, tuple[CachedRequest, int]] = OrderedDict()
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, request: str) -> CachedRequest | None:
        found = self._requests.get(request)
        if found is None:
            return None
        self._requests.move_to_end(request)
        return found[0]

    def put(self, request: str, cached: CachedRequest) -> None:
        """Keep a request, and weigh it anew: it may have grown since. One beyond the bound is not kept."""
        self._forget(request)
        if cached.weight > self._most:
            return
        self._requests[request] = cached, cached.weight
        self.held += cached.weight
        while self.held > self._most:
            _, (_, weighed) = self._requests.popitem(last=False)
            self.held -= weighed

    def drop(self, request: str) -> None:
        self._forget(request)

    def _forget(self, request: str) -> None:
        _, weighed = self._requests.pop(request, (None, 0))
        self.held -= weighed

    def lock(self, request: str) -> "_Held":
        """Return a context in which this guard works on `request` alone."""
        return _Held(self, request)


class _Held:
    """A lock that exists only while somebody holds or awaits it."""

    __slots__ = ("_cache", "_lock", "_request")

    def __init__(self, cache: Cache, request: str) -> None:
        self._cache = cache
        self._request = request
        lock, users = cache._locks.get(request) or (asyncio.Lock(), 0)
        self._lock = lock
        cache._locks[request] = (lock, users + 1)

    async def __aenter__(self) -> None:
        try:
            await self._lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self._leave()

    def _leave(self) -> None:
        lock, users = self._cache._locks[self._request]
        if users == 1:
            del self._cache._locks[self._request]
        else:
            self._cache._locks[self._request] = (lock, users - 1)
