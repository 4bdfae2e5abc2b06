"""How much of the log each client uses: its open requests, and its recent bytes.

A guard counts what it appends itself. So a decision needs no other party, and there is no shared entry that
anyone could corrupt. What other guards opened, or was opened before this guard started, it reads from the
schedules, since every open request has one. It does so before a client's first submit, and again while the
client is near its quota. Then it also excludes requests that are over but whose schedules remain for a while.

Bytes are limited by a token bucket that holds an hour's worth (Turner, New Directions in Communications,
1986). Running requests may overdraw it. Each guard has its own buckets, full when it starts.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable

from mesh.bus.connection import Bus
from mesh.bus.reader import get
from mesh.errors import Denied
from mesh.service.logs import get_logger
from protocol.domain.steps import ClientUse
from protocol.wire import codec, events, subjects
from protocol.wire.config import Fleet, Quota
from protocol.wire.events import AnyEvent
from protocol.wire.ids import submitter_of

_log = get_logger(__name__)

HOUR_S = 3600.0
MIB = 1 << 20
NEAR = 4
"""A client is near its quota if its open requests exceed this fraction of it: one in `NEAR`."""
COUNT_S = 5.0
"""How long a count is valid, at least."""
_REST = 20
"""A count is repeated after this multiple of its own duration, at the earliest."""
_SIDE_BY_SIDE = 200
_PAGE = 100_000
"""Subjects in one answer of the server."""
_MOST_CLIENTS, _MOST_OVER = 10_000, 50_000
_HINT = "run `mesh setup`, and reload the server; until then a guard knows only the requests that it opened"
_ENDS = frozenset(events.Ended.__args__)


class _Client:
    """One client's use of the log."""

    def __init__(self, now: float) -> None:
        self.open: set[str] = set()
        self.over: set[str] = set()
        """Requests that are over but still had schedules at the last count."""
        self.spent: float = 0.0
        """Bytes taken out of the bucket."""
        self.at = now
        """When `spent` was last updated (monotonic s)."""
        self.count_again_at: float | None = None
        """Monotonic seconds; None before the first count."""
        self.counting = asyncio.Lock()


class ClientQuotas:
    """Each client's use of the log, as this guard knows it.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(
        self, bus: Bus, fleet: Callable[[], Fleet], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bus, self._fleet, self._clock = bus, fleet, clock
        self._clients: OrderedDict[str, _Client] = OrderedDict()

    def known(self, client: str) -> ClientUse | None:
        """Return a client's use; None if it has to be counted first."""
        found, quota = self._client(client), self._fleet().quota_of(client)
        again_at = found.count_again_at
        if again_at is None or (len(found.open) * NEAR > quota.open_requests and self._clock() >= again_at):
            return None
        return self._use(found, quota)

    async def counted(self, client: str) -> ClientUse:
        """Return a client's use, counted again if necessary. Raises BusError."""
        found = self._client(client)
        async with found.counting:
            known = self.known(client)
            if known is None:
                await self._count(client, found)
        return known or self._use(found, self._fleet().quota_of(client))

    def stored(self, event: AnyEvent, bytes_: int) -> None:
        """Count an event that this guard appended."""
        kind, client = type(event), submitter_of(event.request)
        found = self._client(client)
        if kind is events.RequestOpened:
            found.open.add(event.request)
        elif kind in _ENDS:
            found.open.discard(event.request)
            if len(found.over) >= _MOST_OVER:
                found.over.clear()  # the next count finds them again
            found.over.add(event.request)
        found.spent = self._spent(found, self._fleet().quota_of(client)) + bytes_

    def _client(self, client: str) -> _Client:
        found = self._clients.get(client)
        if found is None:
            found = self._clients[client] = _Client(self._clock())
            if len(self._clients) > _MOST_CLIENTS:  # names that left the fleet
                self._clients.popitem(last=False)
        return found

    def _spent(self, found: _Client, quota: Quota) -> float:
        """Return how many bytes are out of the bucket now."""
        now = self._clock()
        back = (now - found.at) / HOUR_S * quota.mib_per_hour * MIB
        found.at, found.spent = now, max(0.0, found.spent - back)
        return found.spent

    def _use(self, found: _Client, quota: Quota) -> ClientUse:
        return ClientUse(len(found.open), self._spent(found, quota), quota)

    async def _count(self, client: str, found: _Client) -> None:
        """Find out which of a client's requests are open."""
        began, before = self._clock(), set(found.open)
        try:
            scheduled = {request async for request in self._scheduled(client)}
        except Denied:  # a server whose accounts were written by an older version
            _log.warning("open_requests_not_counted", client=client, hint=_HINT)
            found.count_again_at = math.inf
            return
        found.over &= scheduled | before | found.open
        maybe = (scheduled | before) - found.over
        if len(maybe) * NEAR > self._fleet().quota_of(client).open_requests:
            over = await self._over(client, maybe)
            found.over |= over
            maybe -= over
        # This guard knows best what it opened or ended in the meantime.
        found.open = (maybe - found.over) | (found.open - before)
        now = self._clock()
        found.count_again_at = now + max(COUNT_S, _REST * (now - began))

    async def _scheduled(self, client: str) -> AsyncIterator[str]:
        """Yield a client's requests that have a schedule."""
        prefix, offset, total = subjects.timer_at(f"{client}_"), 0, 1
        while offset < total:
            asked = {"subjects_filter": subjects.SCHEDULES, "offset": offset}
            answer = await self._bus.api("STREAM.INFO.TIMER", asked)
            found = answer["state"].get("subjects") or {}
            for subject in found:
                if subject.startswith(prefix):
                    yield subject.rpartition(".")[2]
            total, offset = answer.get("total", 0), offset + (len(found) or _PAGE)

    async def _over(self, client: str, requests: set[str]) -> set[str]:
        """Return the requests that are over: those whose newest event for their client ends them."""
        over, turnstile = set[str](), asyncio.Semaphore(_SIDE_BY_SIDE)

        async def look(request: str) -> None:
            async with turnstile:
                found = await get(self._bus, "LOG", subjects.evt(client, request))
            if found is not None and type(codec.decode_event(found.data)) in _ENDS:
                over.add(request)

        await asyncio.gather(*map(look, requests))
        return over
