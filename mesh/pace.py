"""Pace: how fast one process asks one model, so that many processes do not run at a vendor together.

The fleet file says what all of them may do (`[models.<id>]`); each takes its part of that, and needs nobody
else for it. Whoever is told to slow down holds back everything that it would ask that model, until the
vendor's pause is over; and a little longer, by chance, so that not all come back at once.
"""

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

import structlog

from protocol.wire.config import ModelLimits

_log = structlog.get_logger(__name__)

MINUTE_S = 60.0
LONGEST_HOLD_S = 60.0
"""A longer pause is not waited for: the turn is given back, and tried again by the guard."""
FIRST_PAUSE_S = 1.0
"""After a vendor's no that names no pause; each further one doubles it."""
LONGEST_PAUSE_S = 30.0
LONGEST_ASKED_S = 3600.0
"""No pause is taken for longer: a slip in one header must not silence a process for the rest of its life."""
_JITTER = 0.25
"""How much longer than asked a pause may be."""
_MOST_DOUBLED = 16
"""Doubling more often changes nothing, and a number has an end."""
_NO_LIMITS = ModelLimits()

_limits: dict[str, ModelLimits] = {}


def configure(limits: Mapping[str, ModelLimits]) -> None:
    """Take over what the fleet says of its models."""
    _limits.clear()
    _limits.update(limits)


def sound_pause(pause_s: float | None) -> float | None:
    """Return what a vendor's pause is taken for: from 0 to LONGEST_ASKED_S; None where it is no number."""
    if pause_s is None or not math.isfinite(pause_s):
        return None
    return min(max(0.0, pause_s), LONGEST_ASKED_S)


class HeldBack(Exception):
    """There is no room for another request now. `after_s`: when there may be."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class Pace:
    """This process's requests to one model. First come, first served.

    Args:
        clock, sleep: monotonic seconds, and what waits for them.
    """

    def __init__(
        self,
        model: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._model = model
        self._clock, self._sleep = clock, sleep
        self._gate = asyncio.Lock()
        self._freed = asyncio.Event()
        self._running = 0
        self._begun: deque[float] = deque()
        """When requests began that still count (monotonic seconds)."""
        self._not_before = 0.0
        """Monotonic seconds."""
        self._refused = 0
        """How often in a row the vendor said to slow down."""

    @asynccontextmanager
    async def room(self, within_s: float, longest_hold_s: float = LONGEST_HOLD_S) -> AsyncIterator[None]:
        """Wait until a request may be made, and count it for as long as the block runs.

        Raises HeldBack when that takes longer than `within_s`, or the vendor's pause `longest_hold_s`.
        """
        try:
            self._held_s(longest_hold_s)  # before the gate: whoever waits there may be more patient
            async with asyncio.timeout(within_s), self._gate:
                await self._free(longest_hold_s)
                self._running += 1
                self._begun.append(self._clock())
        except TimeoutError:
            raise HeldBack(f"no room for a request to {self._model} within {within_s:g} s") from None
        try:
            yield
        finally:
            self._running -= 1
            self._freed.set()

    def hold(self, pause_s: float | None) -> None:
        """Ask nothing more for a while: the vendor said to slow down.

        Args:
            pause_s: how long it said; None where it did not, or not in a number.
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
            wait_s = max(self._held_s(longest_hold_s), self._until_a_place_s())
            if wait_s > 0:
                await self._sleep(wait_s)
                continue
            most = share(_limits.get(self._model, _NO_LIMITS)).at_once
            if most is None or self._running < most:
                return
            self._freed.clear()
            await self._freed.wait()

    def _until_a_place_s(self) -> float:
        """Return how long it is until another request may begin; 0 or less: now."""
        own = share(_limits.get(self._model, _NO_LIMITS))
        now = self._clock()
        while self._begun and self._begun[0] <= now - own.window_s:
            self._begun.popleft()
        if own.begin is None or len(self._begun) < own.begin:
            return 0.0
        return self._begun[-own.begin] + own.window_s - now


class Share:
    """One process's part of what the fleet says of a model."""

    __slots__ = ("at_once", "begin", "window_s")

    def __init__(self, at_once: int | None, begin: int | None, window_s: float) -> None:
        self.at_once = at_once
        """Requests under way; None for no limit."""
        self.begin = begin
        """Requests that may begin within `window_s`; None for no limit."""
        self.window_s = window_s


def share(limits: ModelLimits) -> Share:
    """Return one process's part. With less than one a minute for each, the window is longer than a minute."""
    at_once = None if limits.concurrency is None else max(1, limits.concurrency // limits.instances)
    if limits.per_minute is None:
        return Share(at_once, None, 0.0)
    each = limits.per_minute / limits.instances
    return Share(at_once, max(1, math.floor(each)), MINUTE_S * max(1.0, 1 / each))


_paces: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Pace]] = WeakKeyDictionary()


def pace_of(model: str) -> Pace:
    """Return this process's pace with a model: one for each loop, of which a process has one."""
    known = _paces.setdefault(asyncio.get_running_loop(), {})
    if model not in known:
        known[model] = Pace(model)
    return known[model]
