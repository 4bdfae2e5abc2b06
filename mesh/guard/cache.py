"""The cache: dockets of requests that this guard judged lately. Never the truth, only saves reading it.

A docket may be behind the log (another guard may have appended); the compare-and-set finds that out,
and then the docket is dropped and read again.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from protocol.due import first_wait
from protocol.ledger import Ledger


@dataclass(slots=True)
class Timer:
    """The schedule of a request as this guard last saw it."""

    seq: int | None
    """What the next compare-and-set on it must name; 0 where none stands, None to replace whatever does."""
    at: int | None
    """UTC µs; None where none stands."""


@dataclass(slots=True)
class Docket:
    """One request: its ledger, where its events lie, and its timer (None: not known)."""

    ledger: Ledger = field(default_factory=Ledger)
    placed: list[int] = field(default_factory=list)
    """The stream sequence of each event, by its number."""
    timer: Timer | None = None
    _quiet: tuple[int, int | None] = (-1, None)
    """For which head `quiet_until` was worked out, and what it is."""

    @property
    def seq(self) -> int:
        """The stream sequence of the head; 0 where there is none."""
        return self.placed[-1] if self.placed else 0

    def quiet_until(self) -> int | None:
        """Return when (UTC µs) something falls due; None if nothing ever will. Worked out once a head."""
        n = self.ledger.n
        if self._quiet[0] != n:
            self._quiet = (n, first_wait(self.ledger, None))
        return self._quiet[1]


class Cache:
    """At most `size` dockets, the longest unused dropped first; one lock for each request in hand."""

    def __init__(self, size: int = 10_000) -> None:
        self._size = size
        self._dockets: OrderedDict[str, Docket] = OrderedDict()
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._dockets)

    def get(self, request: str) -> Docket | None:
        docket = self._dockets.get(request)
        if docket is not None:
            self._dockets.move_to_end(request)
        return docket

    def put(self, request: str, docket: Docket) -> None:
        self._dockets[request] = docket
        self._dockets.move_to_end(request)
        while len(self._dockets) > self._size:
            self._dockets.popitem(last=False)

    def drop(self, request: str) -> None:
        self._dockets.pop(request, None)

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
