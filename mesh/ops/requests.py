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
from protocol.wire.events import AnyEvent, FactsPosted
from protocol.wire.ids import HUMAN, TurnId

T = TypeVar("T")
_POLL_S = 0.2
_MOST_SEARCHED = 50
"""How many open requests are searched for a stuck one."""
_QUIET_PROBES = 10
"""Probes without result after which a request is reported missing."""
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
    """Return the result of `ask` on the index of requests, once it has reached the end of the log.

    Args:
        folder: of the index; None for a temporary one.
        whole: True to index the log from its beginning first; otherwise a new index begins near its end.
        on_work: called with the number of events still to be indexed, if there are many.

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
    except sqlite3.OperationalError:  # such as a full disk: there may be room elsewhere
        if folder is None:
            raise
        return await from_index(bus, ask, folder=None, whole=whole, on_work=on_work)


async def newest_stuck(bus: Bus, folder: Path | None) -> Timeline | None:
    """Return the newest stuck open request, with the reason; else the newest that ended without success.

    A request is stuck if it waits for a person, its client, a thaw, or an agent that is not served. None if
    there is no such request among the newest. Raises BusError.

    Args:
        folder: of the index; None for a temporary one.
    """

    def probe(index: RequestIndex) -> tuple[list[Listed], list[Listed]]:
        ended = [
            each
            for status in ("refused", "failed")
            for each in index.page(Filter(tags=(f"status:{status}",)), limit=1, by_change=True)
        ]
        is_open = Filter(tags=("status:open",))
        return index.page(is_open, limit=_MOST_SEARCHED, by_change=True), ended

    still_open, ended = await from_index(bus, probe, folder=folder)
    for each in still_open:
        happened = (await read_each(bus, [each.request]))[each.request]
        if not happened:
            continue
        shown = await with_served(bus, timeline(happened))
        if any(
            waits.for_ in (HUMAN, "thaw", shown.client) or waits.served is False for waits in shown.waiting
        ):
            return shown
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
    """The steps of a request's turns, each shown once: when it is journaled, and before the event it led to.

    Args:
        show: called with the next step.
    """

    def __init__(self, bus: Bus, request: str, show: Callable[[JournaledStep], None]) -> None:
        self._bus, self._request, self._show = bus, request, show
        self._from_seq: dict[str, int] = {}
        """By agent that had a turn."""
        self._waiting: list[JournaledStep] = []
        """Steps that were read and not yet shown."""
        self._owners: dict[str, str] = {}
        """The agent of each journal whose opening event was shown."""
        self._journals: dict[TurnId, str] = {}
        """The journal of each turn whose opening event was shown."""
        self.passed_over = set[str]()

    async def read(self, happened: Sequence[AnyEvent]) -> None:
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
        """Show the steps of opened turns, up to an event if one is given; then note whose turns it opens.

        The steps of the round that it ends come before it. Others do by their time: that is their agent's
        clock, which may be ahead of the guard's.
        """
        left = []
        ended = None if event is None else self._ended_by(event)
        for step in self._waiting:
            owner = self._owners.get(step.journal)
            is_later = event is not None and step.record.at > event.at
            if owner is None or (is_later and (step.journal, step.round) != ended):
                left.append(step)
            elif owner == step.agent:
                self._show(step)
            else:  # an agent can write under any turn's id
                self.passed_over.add(f"{step.agent} {step.journal} {step.name}")
        self._waiting = left
        if event is not None:
            self._owners |= owners_of((event,))
            if event.work is not None:
                self._journals[event.work.turn] = event.work.journal_id

    def _ended_by(self, event: AnyEvent) -> tuple[str, int] | None:
        """Return journal and number of the round that an event ends; None if it ends none."""
        journal = None if isinstance(event, FactsPosted) else self._journals.get(event.turn)
        return None if journal is None else (journal, event.round)


async def story_so_far(
    bus: Bus,
    request: str,
    *,
    steps: Steps | None = None,
    on_held_up: Callable[[str], None] = lambda why: None,
) -> AsyncIterator[Sequence[bytes]]:
    """Yield a request's events whenever there are more of them; for the last time when it has ended.

    Args:
        steps: shown meanwhile, too.
        on_held_up: called once with the reason if nothing happens: the whole mesh is frozen; or the request
            is not in the log, after a while.

    Raises Impossible if an event is missing, and BusError if the bus cannot be read at the beginning. Waits
    for a bus that goes away later.
    """
    bodies: list[bytes] = []
    from_seq, probes = 1, 0
    head = await JetStreamLog(bus, leader=False).head(request)
    freeze = await mesh_freeze(bus)
    if freeze.frozen and (head is None or not has_ended(head.data)):
        on_held_up(freeze.notice if head is not None else await not_there(bus, request))
        probes = _QUIET_PROBES
    part = await up_to(bus, "LOG", subjects.evt_of(request), from_seq)
    while True:
        if steps is not None:
            happened = [codec.decode_event(stored.data) for stored in part]
            # Read after the events, so that the steps that led to them are there.
            read = functools.partial(steps.read, happened)
            await bus.retry_unavailable(read)
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
            await asyncio.sleep(_POLL_S)
            probes += 1
            if not bodies and probes == _QUIET_PROBES:
                on_held_up(f"there is no request {request} in the log yet; waiting")
        part = await bus.retry_unavailable(
            functools.partial(up_to, bus, "LOG", subjects.evt_of(request), from_seq)
        )
