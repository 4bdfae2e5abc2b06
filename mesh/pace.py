"""Pace: how fast one process asks one model, so that many processes do not run at a vendor together.

The fleet file says what all of them may do (`[models.<id>]`). Processes on a bus share that by an entry there
(protocol/pace.py): each renews its part every few seconds, and a single call asks nobody. Without a bus a
process has the whole. Whoever is told to slow down holds back everything that it would ask that model, until
the vendor's pause is over; and a little longer, by chance, so that not all come back at once.
"""

import asyncio
import contextlib
import contextvars
import math
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

import structlog

from mesh.pace_shares import Shares
from protocol.fleet import ModelLimits
from protocol.pace import LEASE_US, Granted, PaceEntry, Use, released, renewed

_log = structlog.get_logger(__name__)

MINUTE_S = 60.0
LONGEST_HOLD_S = 60.0
"""A longer pause is not waited for: the turn is given back, and tried again by the guard."""
FIRST_PAUSE_S = 1.0
"""After a vendor's no that names no pause; each further one doubles it."""
LONGEST_PAUSE_S = 30.0
LONGEST_ASKED_S = 3600.0
"""No pause is taken for longer: a slip in one header must not silence a process for the rest of its life."""
RENEW_S = 5.0
"""How often a process renews its share of a model that it asks."""
HURRY_S = 1.0
"""How often a process looks whether there is more for calls that wait."""
LEASE_S = LEASE_US / 1e6 - 3.0
"""How long a share is used without being renewed: clocks may differ by the rest."""
QUIET = 3
"""A process gives its share back after so many renewals without a call."""
_LEAVE_S = 1.0
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
        renew_s: how often its share is renewed.
    """

    def __init__(
        self,
        model: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        renew_s: float = RENEW_S,
        shares: Shares | None = None,
    ) -> None:
        self._model = model
        self._renew_s = renew_s
        self._shares = shares
        """What it shares by; None: what its loop shares by (`shared`)."""
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
        self._waiting = 0
        self._asked = False
        """Whether there was a call since the share was renewed."""
        self._share = _NOTHING
        self._keeper: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def room(self, within_s: float, longest_hold_s: float = LONGEST_HOLD_S) -> AsyncIterator[None]:
        """Wait until a request may be made, and count it for as long as the block runs.

        Raises HeldBack when that takes longer than `within_s`, or the vendor's pause `longest_hold_s`.
        """
        self._waiting += 1
        try:
            self._held_s(longest_hold_s)  # before the gate: whoever waits there may be more patient
            self._keep_share()
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
                await self._sleep(wait_s if self._source() is None else min(wait_s, HURRY_S))
                continue
            own = self._own()
            if own.begins != 0 and (own.permits is None or self._running < own.permits):
                return
            self._freed.clear()
            await self._freed.wait()

    def _until_a_place_s(self) -> float:
        """Return how long it is until another request may begin; 0 or less: now."""
        begins = self._own().begins
        begun = self._begun_lately()
        if not begins or begun < begins:
            return 0.0
        return self._begun[-begins] + MINUTE_S - self._clock()

    def _begun_lately(self) -> int:
        """Return how many requests began within the last minute."""
        since = self._clock() - MINUTE_S
        while self._begun and self._begun[0] <= since:
            self._begun.popleft()
        return len(self._begun)

    # --- its share --------------------------------------------------------------------------------

    def _own(self) -> "_Own":
        """Return what this process may do now."""
        limits = _limits.get(self._model, _NO_LIMITS)
        if self._source() is None:
            return _Own(limits.concurrency, limits.per_minute)
        share = self._share if self._clock() < self._share.until_s else _NOTHING
        return _Own(_within(limits.concurrency, share.permits), _within(limits.per_minute, share.begins))

    def _source(self) -> Shares | None:
        return self._shares or _shares()

    def _use(self) -> Use:
        return Use(self._running, self._begun_lately(), self._waiting)

    def _keep_share(self) -> None:
        """See to it that this process has a share, if it needs one, for as long as it asks."""
        self._asked = True
        if self._keeper is not None and not self._keeper.done():
            return
        if self._model in _limits and self._source() is not None:
            own = contextvars.Context()  # what it logs is of no one call
            self._keeper = asyncio.create_task(self._keep(), name=f"pace {self._model}", context=own)

    async def _keep(self) -> None:
        quiet = 0
        while (shares := self._source()) is not None:
            quiet = 0 if self._asked or self._waiting or self._running else quiet + 1
            self._asked = False
            if quiet > QUIET:
                await self.give_back()
                if not self._asked:
                    return
            await self._renew(shares)
            end = self._clock() + self._renew_s
            while (left := end - self._clock()) > 0:
                await asyncio.sleep(min(left, HURRY_S))
                if self._waiting and left > HURRY_S:
                    await self._renew(shares, only_for_more=True)

    async def _renew(self, shares: Shares, *, only_for_more: bool = False) -> None:
        """Renew the share. What it is less by holds before others can read of it, the rest afterwards."""
        granted: _Share = self._share

        def decide(entry: PaceEntry) -> PaceEntry | None:
            nonlocal granted
            limits = _limits.get(self._model, _NO_LIMITS)
            until_s = self._clock() + LEASE_S
            said = renewed(entry, shares.name, time.time_ns() // 1000, self._use(), limits)
            if only_for_more and not self._is_more(said):
                return None
            granted = _Share(said.permits, said.begins, until_s)
            self._share = _Share(
                _within(self._share.permits, said.permits),
                _within(self._share.begins, said.begins),
                self._share.until_s,
            )
            return said.entry

        if await shares.change(self._model, decide):
            self._share = granted
            self._freed.set()

    def _is_more(self, said: Granted) -> bool:
        own = self._own()
        return (said.permits or 0) > (own.permits or 0) or (said.begins or 0) > (own.begins or 0)

    async def give_back(self) -> None:
        """Give the share back, unless calls are under way, or nobody is there to take it."""
        shares = self._source()
        if shares is None or self._running or self._clock() >= self._share.until_s:
            return
        self._share = _NOTHING
        await shares.change(
            self._model, lambda entry: released(entry, shares.name, time.time_ns() // 1000, self._use())
        )

    async def stop(self) -> None:
        """Renew the share no more, and give it back."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self.give_back()


class _Own(NamedTuple):
    """What one process may do. None for no limit."""

    permits: int | None
    """Requests under way."""
    begins: int | None
    """Requests that begin within a minute."""


class _Share(NamedTuple):
    """What this process was granted, until when (monotonic seconds)."""

    permits: int | None
    begins: int | None
    until_s: float


_NOTHING = _Share(0, 0, -math.inf)


def _within(limit: int | None, granted: int | None) -> int | None:
    """Return the lower of two limits of which None is none."""
    if limit is None or granted is None:
        return granted if limit is None else limit
    return min(limit, granted)


_sharing: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Shares]] = WeakKeyDictionary()


def _shares() -> Shares | None:
    """Return what this loop's process shares by; None where there is no bus."""
    sources = _sharing.get(asyncio.get_running_loop())
    return sources[-1] if sources else None


@asynccontextmanager
async def shared(shares: Shares) -> AsyncIterator[None]:
    """Share every model's limits with other processes, in this block; at its end give back what there is."""
    loop = asyncio.get_running_loop()
    sources = _sharing.setdefault(loop, [])
    sources.append(shares)
    try:
        yield
    finally:
        try:
            if sources == [shares]:
                await asyncio.gather(*(pace.stop() for pace in _paces.get(loop, {}).values()))
        finally:
            sources.remove(shares)


_paces: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Pace]] = WeakKeyDictionary()


def pace_of(model: str) -> Pace:
    """Return this process's pace with a model: one for each loop, of which a process has one."""
    known = _paces.setdefault(asyncio.get_running_loop(), {})
    if model not in known:
        known[model] = Pace(model)
    return known[model]
