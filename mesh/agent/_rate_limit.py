"""How fast a process asks a model: the fleet file's limits, and what the vendor's refusals teach it.

Processes share nothing here, so none can slow another down. The vendor alone counts the requests of all of
them, and its refusals are the feedback. After a refusal the process asks nothing until the vendor's pause is
over, halves the number of its concurrent requests, and wins them back one by one.

Additive increase and multiplicative decrease is efficient and fair without any communication between the
processes: Chiu and Jain, Analysis of the Increase and Decrease Algorithms for Congestion Avoidance, 1989.
Details follow TCP. The window is halved from the requests under way, and a window of answers adds one (RFC
5681). The refusals of one burst are one congestion event (RFC 6582). A window that is not used up does not
grow (RFC 7661).
"""

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NewType
from weakref import WeakKeyDictionary

from mesh.service.logs import get_logger
from protocol.wire.config import ModelLimits

_log = get_logger(__name__)

MINUTE_S = 60.0
FIRST_PAUSE_S = 1.0
"""The pause if a vendor names none, and the spread of a pause that it names. Refusals in a row double it."""
LONGEST_PAUSE_S = 30.0
LONGEST_ASKED_S = 3600.0
"""The longest pause that is accepted: a wrong header must not silence a process for ever."""
_MOST_DOUBLED = 16
"""Doubling more often changes nothing, and keeps the number finite."""
_NO_LIMITS = ModelLimits()

Permit = NewType("Permit", int)
"""Permission for one request: the number of congestion events when it began."""


class HeldBack(Exception):
    """There is no room for another request now. `after_s`: when there may be room."""

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class RateLimiter:
    """This process's requests to one model. First come, first served.

    Args:
        clock: monotonic seconds.
    """

    def __init__(
        self, model: str, limits: ModelLimits = _NO_LIMITS, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._model, self._limits, self._clock = model, limits, clock
        self._gate = asyncio.Lock()
        self._freed = asyncio.Event()
        self._running = 0
        self._begun: deque[float] = deque()
        """Start times of the requests that still count (monotonic seconds)."""
        self._not_before = -math.inf
        """The end of the vendor's pause (monotonic seconds)."""
        self._events = 0
        """Congestion events so far."""
        self._refused = 0
        """Congestion events since the vendor last took a request."""
        self._window: int | None = None
        """Requests that may be under way after a refusal; None when all have been won back."""
        self._won = 0
        """Answers counted towards the next place in the window."""

    def configure(self, limits: ModelLimits) -> None:
        """Replace the limits."""
        self._limits = limits
        self._freed.set()

    @property
    def concurrency(self) -> int | None:
        """How many requests may be under way now; None if unlimited."""
        return min(
            (each for each in (self._limits.concurrency, self._window) if each is not None), default=None
        )

    @asynccontextmanager
    async def room(self, within_s: float) -> AsyncIterator[Permit]:
        """Wait until a request may be made, and count it while the block runs.

        Raises HeldBack while the vendor's pause lasts, and when there is no room within `within_s`.
        """
        self._require_no_pause()  # before the gate: no request queues only to learn of it
        try:
            async with asyncio.timeout(within_s), self._gate:
                await self._free()
                self._running += 1
                self._begun.append(self._clock())
        except TimeoutError:
            raise HeldBack(f"no room for a request to {self._model} within {within_s:g} s") from None
        try:
            yield Permit(self._events)
        finally:
            self._running -= 1
            self._freed.set()

    def refused(self, permit: Permit, pause_s: float | None) -> float:
        """Slow down: the vendor refused this request, which is still under way. Return the pause in seconds.

        Args:
            pause_s: the vendor's pause; None if it named none, or not as a number.
        """
        pause_s = bounded_pause(pause_s)
        if permit == self._events:  # other refusals of a burst are no new event
            self._events += 1
            self._refused += 1
            self._window, self._won = max(1, self._running // 2), 0
            _log.warning(
                "model_slowed_down", model=self._model, concurrency=self.concurrency, pause_s=pause_s
            )
        spread = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._refused - 1, _MOST_DOUBLED))
        # Processes that were refused together must not come back together.
        pause_s = (
            spread + random.uniform(0, spread) if pause_s is None else pause_s + random.uniform(0, spread)
        )
        now = self._clock()
        self._not_before = max(self._not_before, now + pause_s)
        self._freed.set()
        return self._not_before - now

    def answered(self, permit: Permit) -> None:
        """Win back a little: the vendor accepted this request, which is still under way."""
        if permit != self._events:
            return  # it began before the latest refusal, so it shows nothing about now
        self._refused = 0
        if self._window is None or self._running < self._window:
            return
        self._won += 1
        if self._won < self._window:
            return
        self._window, self._won = self._window + 1, 0
        most = self._limits.concurrency
        if most is not None and self._window >= most:
            self._window = None
        self._freed.set()

    def _require_no_pause(self) -> None:
        held_s = self._not_before - self._clock()
        if held_s > 0:
            raise HeldBack(f"the vendor of {self._model} asked for a pause", held_s)

    async def _free(self) -> None:
        """Wait for a place in the minute, and for one of the concurrent requests. Raises HeldBack."""
        while True:
            self._require_no_pause()
            concurrency, wait_s = self.concurrency, self._until_a_place_s()
            if wait_s <= 0 and (concurrency is None or self._running < concurrency):
                return
            self._freed.clear()
            try:
                async with asyncio.timeout(wait_s if wait_s > 0 else None):
                    await self._freed.wait()
            except TimeoutError:
                pass

    def _until_a_place_s(self) -> float:
        """Return how long until another request may begin (s); 0 or less means now."""
        per_minute, now = self._limits.per_minute, self._clock()
        while self._begun and self._begun[0] <= now - MINUTE_S:
            self._begun.popleft()
        if per_minute is None or len(self._begun) < per_minute:
            return 0.0
        return self._begun[-per_minute] + MINUTE_S - now


def bounded_pause(pause_s: float | None) -> float | None:
    """Return a vendor's pause, cut to 0 to LONGEST_ASKED_S; None if it is not a number."""
    if pause_s is None or not math.isfinite(pause_s):
        return None
    return min(max(0.0, pause_s), LONGEST_ASKED_S)


_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, RateLimiter]] = WeakKeyDictionary()


def limiter_of(model: str) -> RateLimiter:
    """Return this process's limiter of a model. There is one per event loop, and a process has one event
    loop."""
    known = _limiters.setdefault(asyncio.get_running_loop(), {})
    if model not in known:
        known[model] = RateLimiter(model)
    return known[model]


def configure(limits: Mapping[str, ModelLimits]) -> None:
    """Apply the fleet's limits, by model."""
    known = _limiters.setdefault(asyncio.get_running_loop(), {})
    for model in {*known, *limits}:
        limiter_of(model).configure(limits.get(model, _NO_LIMITS))
