"""A process's pace in asking a model, so that all processes together keep to the model's limits.

The fleet file gives the limits (`[models.<id>]`). Processes share them by one entry per model on the bus
(protocol/domain/rate_limit.py). Each renews its share every few seconds while it asks; a single call costs no
round trip. Without a bus a process has the whole limit. Without limits nothing is shared, read or written.

A vendor's "slow down" holds back every request of this process to that model until the vendor's pause is
over; and a little longer, by chance, so that not all processes come back at once.
"""

import asyncio
import contextlib
import contextvars
import math
import random
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import get
from mesh.errors import PASSING, BusError, SequenceConflict
from mesh.service.logs import get_logger
from protocol.domain.rate_limit import LEASE_US, ModelUse, release, renew
from protocol.wire import config, subjects
from protocol.wire.config import DocumentInvalid, ModelLimits, RateLimitEntry

_log = get_logger(__name__)

STREAM = "RATES"
MINUTE_S = 60.0
LONGEST_HOLD_S = 60.0
"""A call does not wait for a longer pause: the turn is given back, and the guard tries it again."""
FIRST_PAUSE_S = 1.0
"""Taken where a vendor names no pause; each further one doubles it."""
LONGEST_PAUSE_S = 30.0
LONGEST_ASKED_S = 3600.0
"""No pause is taken for longer: a slip in one header must not silence a process for the rest of its life."""
RENEW_S = 2.0
"""How often a process renews its share of a model that it asks."""
EACH_S = 0.03
"""Room for each process's write: with many processes in an entry, renewals come as much less often."""
IDLE_S = 10.0
"""How long after its last call a process gives its share back."""
SKEW_S = 3.0
"""How far clocks may differ. A share is used that much shorter than its lease."""
_LEAVE_S = 1.0
_TRIES = 8
_APART_S = 0.01
"""The longest wait before the next try, drawn by chance; doubled after each.

Full jitter: Exponential Backoff And Jitter, AWS Architecture Blog, 2015.
"""
_JITTER = 0.25
"""How much longer than asked a pause may be, and how much sooner than its time a renewal."""
_MOST_DOUBLED = 16
"""Doubling more often changes nothing, and a number has an end."""
_NO_LIMITS = ModelLimits()


class _Share(NamedTuple):
    """The requests that this process may make, and until when (monotonic seconds)."""

    concurrency: int
    per_minute: int
    until_s: float


_NOTHING = _Share(0, 0, -math.inf)


class HeldBack(Exception):
    """There is no room for another request now. `after_s`: when there may be."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class RateLimiter:
    """This process's requests to one model. First come, first served.

    Args:
        limits: of all processes together.
        bus: an agent's, to share the limits by; None: this process has them alone.
        clock, sleep: monotonic seconds, and the function that waits for them.
        renew_s: how often the share is renewed.
    """

    def __init__(
        self,
        model: str,
        limits: ModelLimits = _NO_LIMITS,
        bus: Bus | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        renew_s: float = RENEW_S,
    ) -> None:
        self._model = model
        self._name = ""
        """The process's own, in the entry."""
        self._renew_s = renew_s
        self._clock, self._sleep = clock, sleep
        self._gate = asyncio.Lock()
        self._freed = asyncio.Event()
        self._running = 0
        self._waiting = 0
        self._begun: deque[float] = deque()
        """When requests began that still count (monotonic seconds)."""
        self._not_before = 0.0
        """Monotonic seconds."""
        self._refused = 0
        """How often in a row the vendor said to slow down."""
        self._asked_at = -math.inf
        """When the last call came (monotonic seconds)."""
        self._share = _NOTHING
        self._processes = 1
        """In the model's entry, as last read."""
        self._keeper: asyncio.Task[None] | None = None
        self._is_denied = False
        self.bus: Bus | None = None
        self.configure(limits, bus)

    def configure(self, limits: ModelLimits, bus: Bus | None) -> None:
        """Take over other limits, and a bus to share them by."""
        if self.bus is None and bus is not None:
            self._name = f"{bus.name}-{secrets.token_hex(4)}"
        self.bus = bus or self.bus
        self._limits = limits
        self._freed.set()

    @asynccontextmanager
    async def room(self, within_s: float, longest_hold_s: float = LONGEST_HOLD_S) -> AsyncIterator[None]:
        """Wait until a request may be made, and count it for as long as the block runs.

        Raises HeldBack when that takes longer than `within_s`, or the vendor's pause `longest_hold_s`.
        """
        self._waiting += 1
        try:
            self._held_s(longest_hold_s)  # before the gate: a call that waits there may be more patient
            async with asyncio.timeout(within_s), self._gate:
                await self._free(longest_hold_s)
                self._running += 1
                self._begun.append(self._clock())
        except TimeoutError:
            raise HeldBack(f"no room for a request to {self._model} within {within_s:g} s") from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._running -= 1
            self._freed.set()

    def hold(self, pause_s: float | None) -> None:
        """Ask nothing more for a while: the vendor said to slow down.

        Args:
            pause_s: as the vendor said; None where it named no pause, or not in a number.
        """
        pause_s = sound_pause(pause_s)
        if pause_s is None:
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._refused, _MOST_DOUBLED))
        self._refused += 1
        until = self._clock() + pause_s * (1 + random.uniform(0, _JITTER))
        self._not_before = max(self._not_before, until)
        _log.warning("model_held_back", model=self._model, pause_s=round(pause_s, 3))

    def answered(self) -> None:
        """The vendor took a request."""
        self._refused = 0

    def _held_s(self, longest_hold_s: float) -> float:
        """Return how long the vendor's pause still is; 0 or less: none. Raises HeldBack."""
        held_s = self._not_before - self._clock()
        if held_s > longest_hold_s:
            raise HeldBack(f"the vendor of {self._model} asked for a pause", held_s)
        return held_s

    async def _free(self, longest_hold_s: float) -> None:
        """Wait for the end of a pause, for a place in the minute, for one among the requests under way."""
        while True:
            self._keep_share()
            concurrency, per_minute = self.allowed()
            wait_s = max(self._held_s(longest_hold_s), self._until_a_place_s(per_minute))
            if wait_s > 0:
                await self._sleep(wait_s if self.bus is None else min(wait_s, self._renew_s))
            elif per_minute == 0 or (concurrency is not None and self._running >= concurrency):
                self._freed.clear()
                await self._freed.wait()
            else:
                return

    def _until_a_place_s(self, per_minute: int | None) -> float:
        """Return how long it is until another request may begin; 0 or less: now."""
        if not per_minute or self._begun_lately() < per_minute:
            return 0.0
        return self._begun[-per_minute] + MINUTE_S - self._clock()

    def _begun_lately(self) -> int:
        """Return how many requests began within the last minute."""
        since = self._clock() - MINUTE_S
        while self._begun and self._begun[0] <= since:
            self._begun.popleft()
        return len(self._begun)

    # --- sharing ----------------------------------------------------------------------------------

    def allowed(self) -> tuple[int | None, int | None]:
        """Return how many requests may be under way here, and begin within a minute. None: no limit."""
        limits = self._limits
        if self.bus is None:
            return limits.concurrency, limits.per_minute
        share = self._share if self._clock() < self._share.until_s else _NOTHING
        return (
            None if limits.concurrency is None else min(limits.concurrency, share.concurrency),
            None if limits.per_minute is None else min(limits.per_minute, share.per_minute),
        )

    def _keep_share(self) -> None:
        """Have the share renewed for as long as this process asks, if there is something to share."""
        self._asked_at = self._clock()
        if self.bus is None or self._limits == _NO_LIMITS:
            return
        if self._keeper is None or self._keeper.done():
            own = contextvars.Context()  # its log lines belong to no one call
            self._keeper = asyncio.create_task(self._keep(), name=f"rate limit {self._model}", context=own)

    async def _keep(self) -> None:
        while not self._is_idle():
            await self._renew()
            await asyncio.sleep(max(self._renew_s, EACH_S * self._processes) * random.uniform(1 - _JITTER, 1))
            if self._is_idle():
                await self.give_back()

    def _is_idle(self) -> bool:
        return not (self._waiting or self._running) and self._clock() >= self._asked_at + IDLE_S

    async def _renew(self) -> None:
        """Renew the share. A smaller one holds before others can read it, a larger one afterwards."""
        granted = self._share

        def renewed(entry: RateLimitEntry) -> RateLimitEntry:
            nonlocal granted
            until_s = self._clock() + LEASE_US / 1e6 - SKEW_S
            usage = ModelUse(self._running, self._begun_lately(), self._waiting)
            self._processes = len(entry.shares)
            renewal = renew(entry, self._name, _now_us(), usage, self._limits)
            granted = _Share(renewal.concurrency, renewal.per_minute, until_s)
            self._share = _Share(
                min(self._share.concurrency, granted.concurrency),
                min(self._share.per_minute, granted.per_minute),
                self._share.until_s,
            )
            return renewal.entry

        if await self._change(renewed):
            self._share = granted
            self._freed.set()

    async def give_back(self) -> None:
        """Give the share back, unless calls are under way: then it ends by itself."""
        if self._running or self._clock() >= self._share.until_s:
            return
        self._share = _NOTHING
        await self._change(lambda entry: release(entry, self._name, _now_us(), self._begun_lately()))

    async def stop(self) -> None:
        """Renew the share no more, and give it back."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self.give_back()

    async def _change(self, change: Callable[[RateLimitEntry], RateLimitEntry]) -> bool:
        """Change the model's entry by compare-and-set. Return False if it did not change, or may not have.

        `change` may be called several times; the last call counts. An unreadable entry is written over.
        """
        try:
            for tried in range(1, _TRIES + 1):
                if await self._try(change):
                    self._is_denied = False
                    return True
                await asyncio.sleep(random.uniform(0, _APART_S * 2**tried))
        except BusError as error:  # the connection reports errors that pass
            if not isinstance(error, PASSING) and not self._is_denied:
                self._is_denied = True
                hint = "run `mesh setup`, and reload the server"
                _log.warning(
                    "rate_limit_not_shared", model=self._model, code=error.code, detail=str(error), hint=hint
                )
        return False

    async def _try(self, change: Callable[[RateLimitEntry], RateLimitEntry]) -> bool:
        """Return False where another process wrote first."""
        assert self.bus is not None
        subject = subjects.rate(self._model)
        found = await get(self.bus, STREAM, subject)
        entry = RateLimitEntry()
        if found is not None:
            try:
                entry = config.read_rate_limit(found.data)
            except DocumentInvalid as invalid:
                _log.warning("rate_limit_unreadable", model=self._model, seq=found.seq, reason=str(invalid))
        after = 0 if found is None else found.seq
        try:
            await self.bus.publish_durable(subject, msgspec.json.encode(change(entry)), after=after)
        except SequenceConflict:
            return False
        return True


def sound_pause(pause_s: float | None) -> float | None:
    """Return a vendor's pause within 0 to LONGEST_ASKED_S; None where it is no number."""
    if pause_s is None or not math.isfinite(pause_s):
        return None
    return min(max(0.0, pause_s), LONGEST_ASKED_S)


def _now_us() -> int:
    return time.time_ns() // 1000


_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, RateLimiter]] = WeakKeyDictionary()


def limiter_of(model: str) -> RateLimiter:
    """Return this process's limiter of a model. There is one for each event loop, and a process has one
    loop."""
    known = _limiters.setdefault(asyncio.get_running_loop(), {})
    if model not in known:
        known[model] = RateLimiter(model)
    return known[model]


def configure(limits: Mapping[str, ModelLimits], bus: Bus | None = None) -> None:
    """Take over the fleet's limits, by model, and the bus to share them by."""
    known = _limiters.setdefault(asyncio.get_running_loop(), {})
    for model in {*known, *limits}:
        limiter_of(model).configure(limits.get(model, _NO_LIMITS), bus)


async def give_back(bus: Bus) -> None:
    """Give back this process's shares, before the connection ends."""
    known = _limiters.get(asyncio.get_running_loop(), {})
    await asyncio.gather(*(limiter.stop() for limiter in known.values() if limiter.bus is bus))
