"""Requests, many and one: those in which something happened last, and one as it grows.

The list is found by reading the log backwards, a piece at a time. It costs as much as one has to look back,
however long the log is. Each listed request is read: its last event alone does not tell who has to act, that
it is frozen, or which conversation it belongs to.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.reader import StoredMessage, bounds, up_to
from mesh.bus.streams import steps_of
from mesh.client.journals import Step, journaled, journals_in
from mesh.errors import LogUnreadable, ProtocolError
from mesh.ops.log import ENDS, NOT_THERE, check_numbers, decoded, glance, has_ended, why_not_there
from mesh.ops.queue import waiting_in
from mesh.service.printable import when
from protocol.domain.ledger import fold
from protocol.views.timeline import named, timeline
from protocol.wire import codec, events, subjects
from protocol.wire.events import AnyEvent
from protocol.wire.ids import HUMAN, NOBODY

_PIECE = 2000
_MOST = 200_000
"""Events that are looked through at most."""
_AT_ONCE = 16
_CHUNK = 32
"""Requests that are read before it is looked whether they are enough."""
_LOOK_S = 0.2
_QUIET_LOOKS = 10
"""Looks in vain after which a request is reported missing."""
_OPEN = ("open", "human", "frozen")

STATUSES = ("open", "human", "frozen", "completed", "refused", "failed", "expired", "cancelled")
"""`human` is an open one that people have to do something about; `frozen` an open one that is frozen."""


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """That a request is frozen."""

    by: str
    since: int
    """UTC µs."""
    reason: str
    sender: str
    """The operator whose credentials they had."""

    @property
    def in_words(self) -> str:
        """Who did it, and since when."""
        return f"by {named(self.by, self.sender)} since {when(self.since)}"


class Recent(msgspec.Struct, frozen=True, kw_only=True):
    """One request: how it stands, and its last event."""

    request: str
    status: str
    holder: str
    """Who has to act; empty when nobody has."""
    type: str
    """Of the last event."""
    at: int
    """UTC µs of the last event."""
    events: int
    frozen: Frozen | None = None
    conversation: str | None = None


async def recent(
    bus: Bus, *, limit: int, status: str | None = None, conversation: str | None = None
) -> tuple[list[Recent], bool]:
    """Return up to `limit` requests, the latest first, and True if there was no need to look further.

    Args:
        status: one of `STATUSES`; None for all.
        conversation: only requests of this conversation; None for all.
    """
    first, last = await bounds(bus, "LOG")
    seen_before: set[str] = set()
    kept: list[Recent] = []
    end, oldest = last, max(first, last - _MOST)
    while end >= oldest and len(kept) < limit:
        start = max(oldest, end - _PIECE + 1)
        piece: list[Recent] = []
        for each in reversed(await up_to(bus, "LOG", None, start, end - start + 1)):
            if each.seq > end:
                continue  # appended since we looked
            seen = _seen(each)
            if seen is not None and seen.request not in seen_before:
                seen_before.add(seen.request)
                if status in (None, seen.status) or (seen.status == "open" and status in _OPEN):
                    piece.append(seen)
        for at in range(0, len(piece), _CHUNK):
            if len(kept) < limit:
                looked = await _looked_into(bus, piece[at : at + _CHUNK])
                kept += [each for each in looked if _is(each, status) and _in(each, conversation)]
        end = start - 1
    return kept[:limit], len(kept) >= limit or oldest == first


def _in(found: Recent, conversation: str | None) -> bool:
    return conversation is None or found.conversation == conversation


def _is(found: Recent, status: str | None) -> bool:
    """Say whether a request is what was asked for."""
    if status == "frozen":
        return found.frozen is not None
    return status in (None, found.status) or (status == "open" and found.status == "human")


def _seen(kept: StoredMessage) -> Recent | None:
    event = glance(kept.data)
    if event is None:
        return None
    ended = event.type in ENDS
    status = event.type.partition(".")[2] if ended else "open"
    holder = "" if ended or event.to == NOBODY else event.to
    return Recent(
        request=event.request, status=status, holder=holder, type=event.type, at=event.at, events=event.n + 1
    )


async def _looked_into(bus: Bus, found: list[Recent]) -> list[Recent]:
    """Return the same with its conversation; an open one also with who has to act, and who froze it."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def look(seen: Recent) -> Recent:
        async with room:
            try:
                log = JetStreamLog(bus, leader=False)
                happened = decoded(stored.body for stored in await log.read(seen.request))
            except (LogUnreadable, ProtocolError):
                return seen  # listed all the same: what is wrong with it shows when it is looked at
        return _as_it_stands(seen, happened)

    return list(await asyncio.gather(*(look(seen) for seen in found)))


def _as_it_stands(seen: Recent, happened: Sequence[AnyEvent]) -> Recent:
    ledger = fold(happened)
    seen = msgspec.structs.replace(seen, conversation=timeline(happened).conversation)
    if seen.status != "open" or not ledger.is_open:
        return seen  # it has ended
    for_people = bool(waiting_in(happened))
    holders = (turn.asked if turn.state == "suspended" else turn.agent for turn in ledger.open.values())
    frozen = None
    if ledger.frozen_at is not None:
        began = next(event for event in reversed(happened) if isinstance(event, events.RequestFrozen))
        frozen = Frozen(by=began.by, sender=began.sender, since=began.at, reason=began.reason)
    return msgspec.structs.replace(
        seen,
        status="human" if for_people else "open",
        holder=HUMAN if for_people else ", ".join(map(str, holders)),
        frozen=frozen,
    )


# --- one request as it grows ----------------------------------------------------------------------


class Steps:
    """The steps of a request's turns, each shown once: as soon as it is journaled, and before what it led to.

    Args:
        show: takes the next step.
    """

    def __init__(self, bus: Bus, request: str, show: Callable[[Step], None]) -> None:
        self._bus, self._request, self._show = bus, request, show
        self._from_seq: dict[str, int] = {}
        """By agent that had a turn."""
        self._known = set[tuple[str, str, str]]()
        self._waiting: list[Step] = []
        """Read, and not shown."""
        self._whose: dict[str, str] = {}
        self.passed_over = set[str]()

    async def look(self, happened: Sequence[AnyEvent]) -> None:
        """Read what was journaled since the last look.

        Args:
            happened: the events since then.

        Raises BusError.
        """
        for agent in journals_in(happened).values():
            self._from_seq.setdefault(agent, 1)
        for agent, from_seq in self._from_seq.items():
            subject = subjects.journals(self._request, agent)
            part = await up_to(self._bus, steps_of(agent), subject, from_seq)
            for journal in sorted({stored.subject.split(".")[4] for stored in part}):
                found = await journaled(
                    self._bus, self._request, (agent,), journal, passed_over=self.passed_over
                )
                self._waiting += (step for step in found if (agent, journal, step.name) not in self._known)
                self._known |= {(agent, journal, step.name) for step in found}
            if part:
                self._from_seq[agent] = part[-1].seq + 1

    def show_until(self, at: int | None = None) -> None:
        """Show the steps of turns that were opened, up to a time (UTC µs) if one is given."""
        left = []
        for step in self._waiting:
            whose = self._whose.get(step.journal)
            if whose is None or (at is not None and step.record.at > at):
                left.append(step)
            elif whose == step.agent:
                self._show(step)
            else:  # anybody may write under any turn's id
                self.passed_over.add(f"{step.agent} {step.journal} {step.name}")
        self._waiting = left

    def opened_by(self, event: AnyEvent) -> None:
        """Learn from an event whose turn it opens."""
        self._whose |= journals_in((event,))


async def story_so_far(
    bus: Bus,
    request: str,
    *,
    steps: Steps | None = None,
    on_missing: Callable[[str], None] | None = None,
) -> AsyncIterator[Sequence[bytes]]:
    """Yield a request's events each time that there are more of them; the last time when it has ended.

    Args:
        steps: are shown meanwhile, too.
        on_missing: told once, after a while, that the request is not in the log, and why that may be.

    Raises Impossible where one of them is missing, and BusError when the bus cannot be read at the
    beginning; one that goes away later is waited for.
    """
    bodies: list[bytes] = []
    from_seq, looks = 1, 0
    part = await up_to(bus, "LOG", subjects.evt_of(request), from_seq)
    while True:
        if steps is not None:
            happened = [codec.decode_event(stored.data) for stored in part]
            look = functools.partial(steps.look, happened)  # after the events: what led to them is there
            await bus.retry_unavailable(look)
        for kept in part:
            check_numbers(request, [kept.data], first=len(bodies))
            bodies.append(kept.data)
            if steps is not None:
                event = codec.decode_event(kept.data)
                steps.show_until(event.at)
                steps.opened_by(event)
            yield bodies
            if has_ended(kept.data):
                return
        if steps is not None:
            steps.show_until()
        if part:
            from_seq = part[-1].seq + 1
        else:
            await asyncio.sleep(_LOOK_S)
            looks += 1
        if not bodies and on_missing is not None and looks >= _QUIET_LOOKS:
            on_missing(f"{NOT_THERE.format(request)} yet; waiting{await why_not_there(bus)}")
            on_missing = None
        part = await bus.retry_unavailable(
            functools.partial(up_to, bus, "LOG", subjects.evt_of(request), from_seq)
        )
