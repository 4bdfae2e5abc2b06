"""The log without a server: it passes the same contract suite as the one in JetStream.

`lose_answers` and `go_away` make it behave as a bus does on a bad day.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping

from mesh.bus.event_log import Stored, number_of
from mesh.errors import ApiCode, LogUnreadable, SequenceConflict, TimedOut, Unreachable
from protocol.wire.subjects import evt, evt_of


class MemoryLog:
    """An `EventLog` in memory. Not for more than one event loop."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Stored]] = []
        """Every event with its request, in order."""
        self.headers: list[dict[str, str]] = []
        self._grown = asyncio.Event()
        self._lost = 0
        self._away = False

    def lose_answers(self, count: int = 1) -> None:
        """Let the next `count` appends be stored, and then say that nobody knows."""
        self._lost = count

    def go_away(self, *, away: bool = True) -> None:
        """Be unreachable, until told otherwise."""
        self._away = away

    async def append(
        self, to: str, request: str, body: bytes, *, after: int, headers: Mapping[str, str] | None = None
    ) -> int:
        evt(to, request)  # raises ValueError for what could not be a subject
        self._require()
        head = self._of(request)[-1:]
        if (head[0].seq if head else 0) != after:
            raise SequenceConflict(evt_of(request), ApiCode.WRONG_LAST_SEQUENCE, f"the last is not {after}")
        stored = Stored(len(self.events) + 1, to, body)
        self.events.append((request, stored))
        self.headers.append(dict(headers or {}))
        self._grown.set()
        if self._lost:
            self._lost -= 1
            raise TimedOut("the answer was lost, as asked for")
        return stored.seq

    async def head(self, request: str) -> Stored | None:
        self._require()
        found = self._of(request)
        return found[-1] if found else None

    async def read(self, request: str) -> list[Stored]:
        self._require()
        found = self._of(request)
        if found and number_of(found[-1]) + 1 != len(found):
            wanted = number_of(found[-1]) + 1
            raise LogUnreadable(request, f"{len(found)} of {wanted} events up to {found[-1].seq}")
        return found

    async def follow(self, from_seq: int = 1, *, tail: bool = True) -> AsyncGenerator[Stored]:
        following = max(1, from_seq)
        while True:
            while following <= len(self.events):
                yield self.events[following - 1][1]
                following += 1
            if not tail:
                return
            self._grown.clear()
            await self._grown.wait()

    def _of(self, request: str) -> list[Stored]:
        return [stored for owner, stored in self.events if owner == request]

    def _require(self) -> None:
        if self._away:
            raise Unreachable("the log is away, as asked for")
