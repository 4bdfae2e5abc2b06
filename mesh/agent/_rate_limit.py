"""A process's pace in asking a model: its limits in the fleet file, and what the vendor's refusals teach it.

Processes share nothing here, so that none can slow another down. The vendor alone counts the requests of all
of them, and says when there are too many: that is the feedback. The process then asks nothing until the
vendor's pause is over, halves how many of its requests may be under way, and wins them back one by one.

Additive increase and multiplicative decrease is the control that is efficient and fair without a word
between those who share: Chiu and Jain, Analysis of the Increase and Decrease Algorithms for Congestion
Avoidance, 1989. Details are TCP's. What is halved is what was under way, and a window of answers adds one
(RFC 5681). The refusals of one burst are one congestion event (RFC 6582). A window that is not used up does
not grow (RFC 7661).
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
"""The pause where a vendor names none, and the spread of one that it names. Refusals in a row double it."""
LONGEST_PAUSE_S = 30.0
LONGEST_ASKED_S = 3600.0
"""No pause is taken for longer: a slip in one header must not silence a process for the rest of its life."""
_MOST_DOUBLED = 16
"""Doubling more often changes nothing, and a number has an end."""
_NO_LIMITS = ModelLimits()

Permit = NewType("Permit", int)
"""A request's leave to be made: how many congestion events had been when it began."""


class HeldBack(Exception):
    """There is no room for another request now. `after_s`: when there may be."""

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
        """When requests began that still count (monotonic seconds)."""
        self._not_before = -math.inf
        """The end of the vendor's pause (monotonic seconds)."""
        self._events = 0
        """Congestion events so far."""
        self._refused = 0
        """Congestion events since the vendor last took a request."""
        self._window: int | None = None
        """Requests that may be under way after a refusal; None while nothing is to be won back."""
        self._won = 0
        """Answers towards the next place in the window."""

    def configure(self, limits: ModelLimits) -> None:
        """Take over other limits."""
        self._limits = limits
        self._freed.set()

    @property
    def concurrency(self) -> int | None:
        """How many requests may be under way now; None for no limit."""
        return min(
            (each for each in (self._limits.concurrency, self._window) if each is not None), default=None
        )

    @asynccontextmanager
    async def room(self, within_s: float) -> AsyncIterator[Permit]:
        """Wait until a request may be made, and count it for as long as the block runs.

        Raises HeldBack while the vendor's pause lasts, and when there is no room within `within_s`.
        """
        self._require_no_pause()  # before the gate: nobody waits behind others to hear it
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
            pause_s: as the vendor said; None where it named no pause, or not in a number.
        """
        pause_s = sound_pause(pause_s)
        if permit == self._events:  # the others of a burst tell nothing new
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
        """Win back a little: the vendor took this request, which is still under way."""
        if permit != self._events:
            return  # it began before the latest refusal, and tells nothing of what is possible now
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
        """Wait for a place in the minute, and for one among the requests under way. Raises HeldBack."""
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
        """Return how long it is until another request may begin; 0 or less: now."""
        per_minute, now = self._limits.per_minute, self._clock()
        while self._begun and self._begun[0] <= now - MINUTE_S:
            self._begun.popleft()
        if per_minute is None or len(self._begun) < per_minute:
            return 0.0
        return self._begun[-per_minute] + MINUTE_S - now


def sound_pause(pause_s: float | None) -> float | None:
    """Return a vendor's pause within 0 to LONGEST_ASKED_S; None where it is no number."""
    if pause_s is None or not math.isfinite(pause_s):
        return None
    return min(max(0.0, pause_s), LONGEST_ASKED_S)


_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, RateLimiter]] = WeakKeyDictionary()


def limiter_of(model: str) -> RateLimiter:
    """Return this process's limiter of a model. There is one for each event loop, and a process has one
    loop."""
    known = _limiters.setdefault(asyncio.get_running_loop(), {})
    if model not in known:
        known[model] = RateLimiter(model)
    return known[model]


def configure(limits: Mapping[str, ModelLimits]) -> None:
    """Take over the fleet's limits, by model."""
    known = _limiters.setdefault(asyncio.get_running_loop(), {})
    for model in {*known, *limits}:
        limiter_of(model).configure(limits.get(model, _NO_LIMITS))
