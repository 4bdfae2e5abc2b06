"""Requests: the latest ones as a list, and one of them as it grows."""

import asyncio
import contextlib
import functools
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.reader import up_to
from mesh.bus.stores import JournaledStep, read_steps
from mesh.bus.streams import steps_of
from mesh.ops.feed import IndexFeed, is_damage
from mesh.ops.index import RequestIndex
from mesh.ops.journals import owners_of
from mesh.ops.log import check_numbers, has_ended, not_there, read_each
from mesh.ops.roster import mesh_freeze, with_served
from mesh.ops.rows import Listed
from mesh.ops.where import Filter
from protocol.views.timeline import Timeline, timeline
from protocol.wire import codec, subjects
from protocol.wire.events import AnyEvent
from protocol.wire.ids import HUMAN

T = TypeVar("T")
_LOOK_S = 0.2
_LOOKED_INTO = 50
"""How many open requests are searched for a stuck one."""
_QUIET_LOOKS = 10
"""Looks in vain after which a request is reported missing."""
_MANY = 2_000
"""Events that are indexed in no time."""


async def from_index(
    bus: Bus,
    ask: Callable[[RequestIndex], T],
    *,
    folder: Path | None,
    whole: bool = False,
    on_work: Callable[[int], None] = lambda events: None,
) -> T:
    """Return what `ask` returns for the index of requests, once it has reached the end of the log.

    Args:
        folder: of the index; None: a temporary one.
        whole: index the log from its beginning first; otherwise a new index begins near the log's end.
        on_work: is told how many events are still to be indexed, if they are many.

    Raises OldForm, BusError.
    """
    try:
        async with IndexFeed(bus, folder, whole=whole) as feed:
            if feed.behind > _MANY:
                on_work(feed.behind)
            try:
                await feed.catch_up()
                return await asyncio.to_thread(ask, feed.index)
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                await asyncio.to_thread(feed.index.replace)
                await feed.catch_up()
                return await asyncio.to_thread(ask, feed.index)
    except sqlite3.OperationalError:  # a full disk, for example: elsewhere there may be room
        if folder is None:
            raise
        return await from_index(bus, ask, folder=None, whole=whole, on_work=on_work)


async def newest_stuck(bus: Bus, folder: Path | None) -> Timeline | None:
    """Return the newest open request that is stuck, with why; else the newest that came to nothing.

    Stuck is what waits for a person, its client, a thaw, or an agent that nobody serves. None if there is no
    such request among the newest. Raises BusError.

    Args:
        folder: of the index; None: a temporary one.
    """

    def look(index: RequestIndex) -> tuple[list[Listed], list[Listed]]:
        ended = [
            each
            for status in ("refused", "failed")
            for each in index.page(Filter(tags=(f"status:{status}",)), limit=1, by_change=True)
        ]
        is_open = Filter(tags=("status:open",))
        return index.page(is_open, limit=_LOOKED_INTO, by_change=True), ended

    still_open, ended = await from_index(bus, look, folder=folder)
    for each in still_open:
        happened = (await read_each(bus, [each.request]))[each.request]
        if not happened:
            continue
        told = await with_served(bus, timeline(happened))
        if any(waits.for_ in (HUMAN, "thaw", told.client) or waits.served is False for waits in told.waiting):
            return told
    for each in sorted(ended, key=lambda each: -each.last):
        if happened := (await read_each(bus, [each.request]))[each.request]:
            return timeline(happened)
    return None


async def with_forks(bus: Bus, told: Timeline, folder: Path | None) -> Timeline:
    """Return a request's story with the requests that were forked from it, as far as the index knows them.

    Args:
        folder: of the index; None: a temporary one.

    Raises OldForm, BusError.
    """
    with contextlib.suppress(sqlite3.Error, OSError):  # nowhere to keep an index: the rest is told without it
        forks = await from_index(bus, lambda index: index.forks_of(told.request), folder=folder)
        return replace(told, forks=forks)
    return told


# --- one request as it grows ----------------------------------------------------------------------


class Steps:
    """The steps of a request's turns, each shown once: as soon as it is journaled, and before what it led to.

    Args:
        show: takes the next step.
    """

    def __init__(self, bus: Bus, request: str, show: Callable[[JournaledStep], None]) -> None:
        self._bus, self._request, self._show = bus, request, show
        self._from_seq: dict[str, int] = {}
        """By agent that had a turn."""
        self._waiting: list[JournaledStep] = []
        """Read, and not shown."""
        self._whose: dict[str, str] = {}
        """By journal: the agent whose it is, once the event that opened it was shown."""
        self.passed_over = set[str]()

    async def look(self, happened: Sequence[AnyEvent]) -> None:
        """Read what was journaled since the last call.

        Args:
            happened: the events since then.

        Raises BusError.
        """
        for agent in owners_of(happened).values():
            self._from_seq.setdefault(agent, 1)
        for agent, from_seq in self._from_seq.items():
            subject = subjects.journals(self._request, agent)
            if part := await up_to(self._bus, steps_of(agent), subject, from_seq):
                self._waiting += read_steps([(each.subject, each.data) for each in part], self.passed_over)
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
            else:  # an agent can write under any turn's id
                self.passed_over.add(f"{step.agent} {step.journal} {step.name}")
        self._waiting = left
        if event is not None:
            self._whose |= owners_of((event,))


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
