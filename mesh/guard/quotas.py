"""What each client has of the log: its open requests, and the bytes that it was given lately.

A guard counts by itself what it appends. So a decision asks nobody, and there is no shared entry that anyone
could spoil. What other guards opened, and what was opened before this one started, it reads from the
schedules: every open request has one. It does so before a client's first submit, and again while the client
is near its quota. Then it also leaves out the requests that are over, whose schedules stand for a while.

Bytes are a token bucket that holds an hour's worth (Turner, New Directions in Communications, 1986). It may
be overdrawn by the requests that are under way. Each guard has buckets of its own, full when it starts.
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
"""Near its quota is a client whose open requests are more than this part of it: one in so many."""
COUNT_S = 5.0
"""How long a count counts."""
_REST = 20
"""A count is repeated after so many times the time that it took, at the earliest."""
_SIDE_BY_SIDE = 200
_PAGE = 100_000
"""Subjects in one answer of the server."""
_MOST_CLIENTS, _MOST_OVER = 10_000, 50_000
_HINT = "run `mesh setup`, and reload the server; until then a guard knows of those alone that it opened"
_ENDS = frozenset(events.Ended.__args__)


class _Client:
    """One client's use of the log."""

    def __init__(self, now: float) -> None:
        self.open: set[str] = set()
        self.over: set[str] = set()
        """Requests that are over and whose schedules stood at the last count."""
        self.spent: float = 0.0
        """Bytes out of the bucket."""
        self.at = now
        """When `spent` was right (monotonic seconds)."""
        self.count_again_at: float | None = None
        """Monotonic seconds; None before the first count."""
        self.counting = asyncio.Lock()


class ClientQuotas:
    """What each client has, as this guard knows it.

    Args:
        clock: monotonic seconds.
    """

    def __init__(
        self, bus: Bus, fleet: Callable[[], Fleet], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bus, self._fleet, self._clock = bus, fleet, clock
        self._clients: OrderedDict[str, _Client] = OrderedDict()

    def known(self, client: str) -> ClientUse | None:
        """Return what a client has; None if that has to be counted first."""
        found, quota = self._client(client), self._fleet().quota_of(client)
        again_at = found.count_again_at
        if again_at is None or (len(found.open) * NEAR > quota.open_requests and self._clock() >= again_at):
            return None
        return self._use(found, quota)

    async def counted(self, client: str) -> ClientUse:
        """Return what a client has, counted anew if need be. Raises BusError."""
        found = self._client(client)
        async with found.counting:
            known = self.known(client)
            if known is None:
                await self._count(client, found)
        return known or self._use(found, self._fleet().quota_of(client))

    def stored(self, event: AnyEvent, bytes_: int) -> None:
        """Take into account an event that this guard appended."""
        kind, client = type(event), submitter_of(event.request)
        found = self._client(client)
        if kind is events.RequestOpened:
            found.open.add(event.request)
        elif kind in _ENDS:
            found.open.discard(event.request)
            if len(found.over) >= _MOST_OVER:
                found.over.clear()  # a count can find out anew
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
        """Return what is out of the bucket now."""
        now = self._clock()
        back = (now - found.at) / HOUR_S * quota.mib_per_hour * MIB
        found.at, found.spent = now, max(0.0, found.spent - back)
        return found.spent

    def _use(self, found: _Client, quota: Quota) -> ClientUse:
        return ClientUse(len(found.open), self._spent(found, quota), quota)

    async def _count(self, client: str, found: _Client) -> None:
        """Read which of a client's requests are open."""
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
        # What this guard opened or ended meanwhile it knows best.
        found.open = (maybe - found.over) | (found.open - before)
        now = self._clock()
        found.count_again_at = now + max(COUNT_S, _REST * (now - began))

    async def _scheduled(self, client: str) -> AsyncIterator[str]:
        """Yield the requests of a client that have a schedule."""
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
        """Return which requests are over: the newest event for their client ends them."""
        over, turnstile = set[str](), asyncio.Semaphore(_SIDE_BY_SIDE)

        async def look(request: str) -> None:
            async with turnstile:
                found = await get(self._bus, "LOG", subjects.evt(client, request))
            if found is not None and type(codec.decode_event(found.data)) in _ENDS:
                over.add(request)

        await asyncio.gather(*map(look, requests))
        return over
