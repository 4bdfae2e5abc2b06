"""`mesh human watch`: finds what people must act on, in the log as it grows and in DEAD.

Everything is reported at least once by each watch, in the order of the log. A broker restart costs time and
nothing else. An alarm shows its request as it was when the event was written.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Literal

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.reader import StoredMessage, bounds, first_since
from mesh.errors import PASSING, BusError, MeshError
from mesh.ops import dead_letters
from mesh.ops.log import EventHeader, decoded, header_of
from mesh.ops.queue import Waiting, What, people_of, queue, waiting_in
from protocol.wire import events, subjects
from protocol.wire.ids import HUMAN
from protocol.wire.records import DeadLetter

_DEAD_POLL_S = 1.0

_INTERESTING: dict[str, What] = {
    events.type_of(events.EscalationRaised): "escalation",
    events.type_of(events.TurnSuspended): "ask",
    events.type_of(events.EffectDoubted): "doubt",
}


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person should know about."""

    what: Literal["escalation", "ask", "doubt", "dead_letter"]
    at: int
    """In UTC µs."""
    request: str
    """Empty for a dead letter about no request."""
    agent: str
    """The agent whose turn it was or is; for a dead letter, the sender."""
    summary: str
    reason: str
    url: str
    """Address of the bus."""
    waiting: Waiting | None = None
    seq: int | None = None
    """A dead letter's number in `mesh dead ls`."""
    tier_name: str = ""
    """The tier of the fleet's people that it is for; empty if the fleet names none."""
    id: str = ""
    """The same whenever this is reported: `<request>-<event>`, or `dead-<number>`; without a `.`."""


class WatchPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a watch: everything up to here was reported."""

    log: int
    """Sequence in the log."""
    dead: int
    """Sequence among the dead letters."""


class Watch:
    """One watch on a bus, as an operator or a viewer.

    Args:
        url: where the bus is, for those who get the alarms.
        on_unreadable: called with requests that could not be read.
    """

    def __init__(
        self, bus: Bus, url: str, *, on_unreadable: Callable[[list[str]], None] = lambda requests: None
    ) -> None:
        self._bus, self._url = bus, url
        self._on_unreadable = on_unreadable
        self._log = JetStreamLog(bus, leader=False)
        self.place: WatchPoint | None = None
        """How far the yielded alarms have come; None until all that waited at the beginning are yielded."""
        self._at_start: set[tuple[str, int]] = set()
        """(request, event) of what waited when the watch began."""

    async def alarms(
        self,
        *,
        since: str | None = None,
        after: WatchPoint | None = None,
        waiting: bool = True,
        goes_on: bool = True,
        on_begun: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[Alarm]:
        """Yield alarms as they come, each with the tier that has it according to the current fleet.

        Args:
            since: begin with what was raised from this time on (RFC 3339), even if it is settled.
            after: begin with what was raised after this place, even if it is settled.
            waiting: without `since` and `after`: begin with what waits for people now.
            goes_on: True to wait for more; if not, end with the current end of the log.
            on_begun: called when all that waited at the beginning was yielded, and `place` is known.

        Raises BusError if the bus cannot be reached at the beginning.
        """
        async for alarm in self._alarms(since, after, waiting, goes_on, on_begun):
            fleet = await self._bus.retry_unavailable(lambda: people_of(self._bus))
            raised = 0 if alarm.waiting is None else alarm.waiting.tier
            yield msgspec.structs.replace(alarm, tier_name=fleet.tier_for(raised))

    async def _alarms(
        self,
        since: str | None,
        after: WatchPoint | None,
        waiting: bool,
        goes_on: bool,
        on_begun: Callable[[], None],
    ) -> AsyncIterator[Alarm]:
        known = (None, None) if after is None else (after.log, after.dead)
        log_from = await self._begin("LOG", subjects.EVENTS, since, known[0])
        dead_from = await self._begin(dead_letters.STREAM, dead_letters.SUBJECTS, since, known[1])
        anew = since is None and after is None
        if anew and waiting:
            found = await queue(self._bus)
            self._on_unreadable(found.unreadable)
            for each in found.waiting:
                self._at_start.add((each.request, each.n))
                yield self._alarm(each)
        self.place = WatchPoint(log=log_from - 1, dead=dead_from - 1)
        on_begun()
        if goes_on:
            async for seq, alarm in self._coming(log_from, dead_from):
                self._reach(seq, alarm)
                yield alarm
        elif not anew:
            async for seq, alarm in self._raised(log_from, tail=False):
                self._reach(seq, alarm)
                yield alarm
            async for seq, letter in dead_letters.letters(self._bus, dead_from):
                self._reach(seq, alarm := self._dead(seq, letter))
                yield alarm

    def _reach(self, seq: int, alarm: Alarm) -> None:
        """Move the place to an alarm that is yielded next."""
        assert self.place is not None
        moved = {"log": seq} if alarm.seq is None else {"dead": seq}
        self.place = msgspec.structs.replace(self.place, **moved)

    async def _begin(self, stream: str, subject: str, since: str | None, after: int | None) -> int:
        """Return the sequence to begin with: of the first message since a time, else of the next message.

        A place beyond the stream's end belongs to an earlier stream of that name.
        """
        start, last = await bounds(self._bus, stream)
        if after is not None:
            return after + 1 if after <= last else start
        first = None if since is None else await first_since(self._bus, stream, subject, since)
        return last + 1 if first is None else first.seq

    async def _coming(self, log_from: int, dead_from: int) -> AsyncIterator[tuple[int, Alarm]]:
        """Yield the alarms of both sources as they come, each with its sequence in its source."""
        found = asyncio.Queue[tuple[int, Alarm] | Exception]()

        async def put(source: AsyncIterator[tuple[int, Alarm]]) -> None:
            try:
                async for alarm in source:
                    found.put_nowait(alarm)
            except Exception as error:  # neither source ends by itself
                found.put_nowait(error)

        sources = (self._raised(log_from, tail=True), self._dead_lettered(dead_from))
        reading = [asyncio.create_task(put(source)) for source in sources]
        try:
            while True:
                arrival = await found.get()
                if isinstance(arrival, Exception):
                    raise arrival
                yield arrival
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    # --- the log ----------------------------------------------------------------------------------

    async def _raised(self, from_seq: int, *, tail: bool) -> AsyncIterator[tuple[int, Alarm]]:
        following = self._log.follow(from_seq, tail=tail)
        async with contextlib.aclosing(following) as stored_events:
            async for stored in stored_events:
                event = _raising_header(stored)
                if event is not None and (event.request, event.n) not in self._at_start:
                    yield stored.seq, await self._alarm_for(event)

    async def _alarm_for(self, event: EventHeader) -> Alarm:
        """Return the alarm that an event raises, with its request as it was then."""
        try:
            stored = await self._bus.retry_unavailable(lambda: self._log.read(event.request))
            happened = decoded([each.data for each in stored][: event.n + 1])
            return next(self._alarm(each) for each in waiting_in(happened) if each.n == event.n)
        except BusError:
            raise
        except (MeshError, StopIteration):
            return Alarm(
                what=_INTERESTING[event.type],
                at=event.at,
                request=event.request,
                agent="",
                summary="this version cannot read the request",
                reason=event.type,
                url=self._url,
                id=f"{event.request}-{event.n}",
            )

    def _alarm(self, waiting: Waiting) -> Alarm:
        return Alarm(
            what=waiting.what,
            at=waiting.since,
            request=waiting.request,
            agent=waiting.from_agent,
            summary=waiting.summary,
            reason=waiting.reason,
            url=self._url,
            waiting=waiting,
            id=f"{waiting.request}-{waiting.n}",
        )

    # --- dead letters -----------------------------------------------------------------------------

    async def _dead_lettered(self, from_seq: int) -> AsyncIterator[tuple[int, Alarm]]:
        seen = set[dead_letters.LetterKey]()
        while True:
            try:
                async for seq, letter in dead_letters.letters(self._bus, from_seq, seen):
                    from_seq = seq + 1
                    yield seq, self._dead(seq, letter)
            except PASSING:
                await self._bus.wait_connected()
            await asyncio.sleep(_DEAD_POLL_S)

    def _dead(self, seq: int, letter: DeadLetter) -> Alarm:
        return Alarm(
            what="dead_letter",
            at=letter.at,
            request=letter.request,
            agent=letter.sender,
            summary=letter.detail,
            reason=letter.code,
            url=self._url,
            seq=seq,
            id=f"dead-{seq}",
        )


def _raising_header(stored: StoredMessage) -> EventHeader | None:
    event = header_of(stored.data)
    if event is None or event.type not in _INTERESTING:
        return None
    is_for_people = subjects.parse_evt(stored.subject).to == HUMAN
    return event if _INTERESTING[event.type] != "ask" or is_for_people else None
