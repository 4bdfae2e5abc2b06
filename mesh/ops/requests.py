"""Requests: the latest ones as a list, and one of them as it grows.

The list is found by reading the log backwards, a piece at a time. It costs as much as one has to look back,
however long the log is. Each listed request is read whole. Its last event alone does not show who has to act,
if it is frozen, or its conversation.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.listing import bounds
from mesh.bus.reader import up_to
from mesh.bus.streams import steps_of
from mesh.client.journals import Step, journals_in, read
from mesh.ops.log import check_numbers, glance, has_ended, not_there, patiently, read_each
from mesh.ops.queue import is_for_people
from mesh.ops.roster import Frozen, mesh_freeze, with_served
from protocol.domain.ledger import Ledger, fold
from protocol.views.timeline import Timeline, timeline
from protocol.wire import codec, events, subjects
from protocol.wire.events import AnyEvent
from protocol.wire.ids import HUMAN, NOBODY

_PIECE = 2000
_MOST = 200_000
"""Events that are looked through at most."""
_CHUNK = 32
"""Requests that are read before it is looked whether they are enough."""
_LOOK_S = 0.2
_LOOKED_INTO = 50
"""Open requests among which one that is stuck is looked for."""
_QUIET_LOOKS = 10
"""Looks in vain after which a request is reported missing."""

STATUSES = ("open", "human", "frozen", "completed", "refused", "failed", "expired", "cancelled")
"""How a request can stand, and two kinds of open ones: `human`, which people have to do something about, and
`frozen`. Those are asked for as a status is; their status is `open` everywhere."""


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
    text: str = ""
    """What its client wrote, in a line."""

    def has_status(self, wanted: str | None) -> bool:
        """Return True if this is a request of a status that was asked for."""
        if wanted == "frozen":
            return self.frozen is not None
        if wanted == "human":
            return self.status == "open" and self.holder == HUMAN
        return wanted in (None, self.status)


async def recent(
    bus: Bus, *, limit: int, status: str | None = None, conversation: str | None = None
) -> tuple[list[Recent], bool]:
    """Return up to `limit` requests, the latest first, and True if there was no need to look further.

    Args:
        status: one of `STATUSES`; None for all.
        conversation: only requests of this conversation; None for all.
    """
    first, last = await patiently(bus, lambda: bounds(bus, "LOG"))
    seen_before: set[str] = set()
    kept: list[Recent] = []
    end, oldest = last, max(first, last - _MOST)
    while end >= oldest and len(kept) < limit:
        start = max(oldest, end - _PIECE + 1)
        piece: list[Recent] = []
        part = await patiently(bus, functools.partial(up_to, bus, "LOG", None, start, end - start + 1))
        for each in reversed(part):
            seen = _seen(each.data) if each.seq <= end else None  # else appended since we looked
            if seen is not None and seen.request not in seen_before:
                seen_before.add(seen.request)
                if seen.status == "open" or seen.has_status(status):
                    piece.append(seen)
        for at in range(0, len(piece), _CHUNK):
            if len(kept) < limit:
                looked = await _looked_into(bus, piece[at : at + _CHUNK])
                kept += [
                    each
                    for each in looked
                    if each.has_status(status) and conversation in (None, each.conversation)
                ]
        end = start - 1
    return kept[:limit], len(kept) >= limit or oldest == first


async def newest_stuck(bus: Bus) -> Timeline | None:
    """Return the newest open request that is stuck, with why; else the newest that came to nothing.

    Stuck is what waits for a person, its client, a thaw, or an agent that nobody serves. None if there is no
    such request among the newest. Raises BusError.
    """
    for each in (await recent(bus, limit=_LOOKED_INTO, status="open"))[0]:
        happened = (await read_each(bus, [each.request]))[each.request]
        if not happened:
            continue
        told = await with_served(bus, timeline(happened))
        if any(waits.for_ in (HUMAN, "thaw", told.client) or waits.served is False for waits in told.waiting):
            return told
    ended = [
        each for status in ("refused", "failed") for each in (await recent(bus, limit=1, status=status))[0]
    ]
    for each in sorted(ended, key=lambda each: -each.at):
        if happened := (await read_each(bus, [each.request]))[each.request]:
            return timeline(happened)
    return None


def _seen(body: bytes) -> Recent | None:
    """Return what a request's last event tells of it."""
    event = glance(body)
    if event is None:
        return None
    return Recent(
        request=event.request,
        status=event.type.partition(".")[2] if event.is_end else "open",
        holder="" if event.is_end or event.to == NOBODY else event.to,
        type=event.type,
        at=event.at,
        events=event.n + 1,
    )


async def _looked_into(bus: Bus, found: list[Recent]) -> list[Recent]:
    """Return the same with its conversation; an open one also with who has to act, and who froze it.

    An unreadable request is listed, too. Looking at it shows the error.
    """
    happened = await read_each(bus, (seen.request for seen in found))
    return [_as_it_stands(seen, happened[seen.request] or ()) for seen in found]


def _as_it_stands(seen: Recent, happened: Sequence[AnyEvent]) -> Recent:
    if not happened:
        return seen
    ledger = fold(happened)
    refused = ledger.ended if isinstance(ledger.ended, events.RequestRefused) else None
    conversation = ledger.conversation if refused is None else refused.submit.conversation
    opened = happened[0]
    text = opened.submit.text if isinstance(opened, events.RequestRefused) else ""
    if isinstance(opened, events.RequestOpened):
        text = opened.work.handoff.summary
    seen = msgspec.structs.replace(seen, conversation=conversation, text=text.strip().partition("\n")[0])
    if seen.status != "open" or not ledger.is_open:
        return seen  # it has ended
    frozen = None
    if ledger.frozen_at is not None:
        began = next(event for event in reversed(happened) if isinstance(event, events.RequestFrozen))
        frozen = Frozen(by=began.by, sender=began.sender, since=began.at, reason=began.reason)
    return msgspec.structs.replace(
        seen,
        holder=holder_of(ledger),
        frozen=frozen,
    )


def holder_of(ledger: Ledger) -> str:
    """Return who has to act; empty when nobody has."""
    if not ledger.is_open:
        return ""
    acting = (turn for turn in ledger.open.values() if turn.state != "delegated")  # not leads that wait
    holders = (turn.asked if turn.state == "suspended" else turn.agent for turn in acting)
    return HUMAN if is_for_people(ledger) else ", ".join(map(str, holders))


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
        self._waiting: list[Step] = []
        """Read, and not shown."""
        self._whose: dict[str, str] = {}
        """By journal: the agent whose it is, once the event that opened it was shown."""
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
            if part := await up_to(self._bus, steps_of(agent), subject, from_seq):
                self._waiting += read([(each.subject, each.data) for each in part], self.passed_over)
                self._from_seq[agent] = part[-1].seq + 1

    def show_until(self, event: AnyEvent | None = None) -> None:
        """Show the steps of turns that were opened, up to an event if one is given; learn whose it opens."""
        left = []
        for step in self._waiting:
            whose = self._whose.get(step.journal)
            if whose is None or (event is not None and step.record.at > event.at):
                left.append(step)
            elif whose == step.agent:
                self._show(step)
            else:  # anybody may write under any turn's id
                self.passed_over.add(f"{step.agent} {step.journal} {step.name}")
        self._waiting = left
        if event is not None:
            self._whose |= journals_in((event,))


async def story_so_far(
    bus: Bus,
    request: str,
    *,
    steps: Steps | None = None,
    on_held_up: Callable[[str], None] = lambda why: None,
) -> AsyncIterator[Sequence[bytes]]:
    """Yield a request's events each time that there are more of them; the last time when it has ended.

    Args:
        steps: are shown meanwhile, too.
        on_held_up: told once why nothing happens: the whole mesh is frozen; or the request is not in the
            log, after a while.

    Raises Impossible where one of them is missing, and BusError when the bus cannot be read at the
    beginning. It waits for a bus that goes away later.
    """
    bodies: list[bytes] = []
    from_seq, looks = 1, 0
    head = await JetStreamLog(bus, leader=False).head(request)
    stands = await mesh_freeze(bus)
    if stands.frozen and (head is None or not has_ended(head.data)):
        on_held_up(stands.notice if head is not None else await not_there(bus, request))
        looks = _QUIET_LOOKS
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
                steps.show_until(codec.decode_event(kept.data))
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
            if not bodies and looks == _QUIET_LOOKS:
                on_held_up(f"there is no request {request} in the log yet; waiting")
        part = await bus.retry_unavailable(
            functools.partial(up_to, bus, "LOG", subjects.evt_of(request), from_seq)
        )
