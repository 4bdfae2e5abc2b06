"""From the log into the list of requests: each event in its order, once, over any number of restarts.

Each request that grows is folded. The folds of those that are open are kept at hand; one that is not there
any more is read again. One process feeds a file; others read it meanwhile, and take over if it goes.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog, check_form
from mesh.bus.listing import bounds, stream_info
from mesh.bus.reader import StoredMessage
from mesh.errors import LogCutShort, OldForm
from mesh.ops.log import glance, read_each
from mesh.ops.queue import is_for_people
from mesh.ops.requests import holder_of
from mesh.service.logs import get_logger
from mesh.service.printable import one_line
from mesh.ui.projection import COSTS, EdgeCount, Listed, Projection, words_of
from protocol.domain import budget
from protocol.domain.ledger import Ledger
from protocol.wire import codec, events
from protocol.wire.commands import Transfer
from protocol.wire.errors import MeshError
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.handoff import TEXT_FACT
from protocol.wire.ids import HUMAN, submitter_of

_log = get_logger(__name__)
_KEPT = 2_000
"""Open requests whose folds are at hand."""
_AT_ONCE = 500
"""Events that are written together."""
_TEXT = 1_000
_TRAIL = 12
"""Names of a trail that the list has, from its end."""
_LOOK_S = 1.0
_TIDY_S = 300.0


class Folded:
    """One request up to an event."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.names = dict[str, None]()
        self.rules = list[str]()
        self.trail = list[str]()
        self.text = ""
        self.opened = 0

    def take(self, event: AnyEvent) -> EdgeCount | None:
        """Take in the next event; return between whom work passed, or was not to pass. Raises BrokenLog."""
        self.ledger.apply(event)
        if event.n == 0:
            self.opened = event.at
        if isinstance(event, events.RequestRefused):
            self.text = event.submit.text
        elif isinstance(event, events.RequestOpened):
            fact = self.ledger.carried().facts.get(TEXT_FACT)
            self.text = "" if fact is None else str(fact.value)
        if event.refusal is not None:
            self.rules.append(str(event.refusal.rule))
        if event.opens_turn and event.work is not None:
            name = str(event.work.handoff.to_agent)
            self.names[name] = None
            self.trail = [*self.trail[-_TRAIL:], name]
        return self._edge(event)

    def _edge(self, event: AnyEvent) -> EdgeCount | None:
        match event:
            case events.HandoffAdmitted(work=work):
                return EdgeCount(work.handoff.from_agent, work.handoff.to_agent, 1, 0)
            case events.EscalationRaised(turn=turn) if self.ledger.turns[turn].agent != HUMAN:
                return EdgeCount(self.ledger.turns[turn].agent, HUMAN, 1, 0)
            case events.TaskOpened(work=work):
                return EdgeCount(work.handoff.from_agent, work.handoff.to_agent, 1, 0)
            case events.MoveRefused(turn=turn, move=Transfer(to_agent=taker)):
                return EdgeCount(self.ledger.turns[turn].agent, taker, 0, 1)
        return None

    def row(self, last: int) -> Listed:
        """Return it as the list shows it; `last` is the place of its newest event."""
        ledger, newest = self.ledger, self.ledger.head
        assert newest is not None
        spent = budget.NOTHING
        for turn in ledger.turns.values():
            spent = budget.plus(spent, turn.report.usage)
        status = str(ledger.status)
        conversation = ledger.conversation
        if isinstance(newest, events.RequestRefused):
            conversation = newest.submit.conversation
        tags = {f"status:{status}", f"client:{ledger.client}"}
        tags |= {"status:human"} if is_for_people(ledger) else set()
        tags |= {"status:frozen"} if ledger.is_open and ledger.frozen_at is not None else set()
        tags |= {f"agent:{name}" for name in self.names} | {f"rule:{rule}" for rule in self.rules}
        tags |= {f"cost:{power}" for power in COSTS if spent.nano_dollars >= 10**power}
        cut = "… → " if len(self.trail) > _TRAIL else ""
        return Listed(
            request=str(ledger.request),
            last=last,
            status=status,
            holder=holder_of(ledger),
            client=str(ledger.client or ""),
            frozen=ledger.is_open and ledger.frozen_at is not None,
            conversation=(conversation or "")[:_TEXT],
            opened=self.opened,
            at=newest.at,
            events=newest.n + 1,
            type=type_of(newest),
            nano_dollars=min(spent.nano_dollars, 2**62),  # SQLite's numbers have 63 bits
            tokens=min(spent.tokens, 2**62),
            model_calls=min(spent.model_calls, 2**62),
            refusals=len(self.rules),
            rule=self.rules[-1] if self.rules else "",
            trail=cut + " → ".join(self.trail[-_TRAIL:]),
            text=self.text[:_TEXT],
            words=words_of(self.text[:_TEXT], (conversation or "")[:_TEXT]),
            tags=" ".join(sorted(tags)),
        )


class Feed:
    """Keeps a list up to date: `run()`, for as long as the page is there.

    Args:
        folder: of the file; None: a temporary one.
    """

    def __init__(self, bus: Bus, folder: Path | None) -> None:
        self._bus = bus
        self._temporary = tempfile.TemporaryDirectory(prefix="mesh-ui-") if folder is None else None
        self._folder = Path(self._temporary.name) if self._temporary is not None else folder or Path()
        self._folds = OrderedDict[str, Folded | None]()
        """None: of a request that cannot be read."""
        self._lock: IO[str] | None = None
        self.trouble = ""
        """Why the list does not grow; empty if it does."""
        self.end = 0
        """Where the log ended when the feeding began."""

    async def open(self, *, anew: bool = False) -> Projection:
        """Return the list of this log as it was left; empty if `anew`. Raises BusError."""
        info = await stream_info(self._bus, "LOG")
        log = str(info["created"])
        self.end = int(info["state"]["last_seq"])
        name = f"page-{hashlib.sha256(log.encode()).hexdigest()[:12]}"
        self.projection = await asyncio.to_thread(Projection, self._folder / f"{name}.sqlite3", log)
        if (anew and self._locks()) or (self.projection.seq > self.end and self._locks()):
            await asyncio.to_thread(self.projection.remake)
        return self.projection

    @property
    def behind(self) -> int:
        """Return how many places of the log, as it was in the beginning, are still to be read."""
        return max(0, self.end - self.projection.seq)

    def _locks(self) -> bool:
        """Return True if this process alone may write the file."""
        if self._lock is None:
            opened = (self._folder / "page.lock").open("w")
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                opened.close()
                return False
            self._lock = opened
        return True

    def close(self) -> None:
        if hasattr(self, "projection"):
            self.projection.close()
        if self._lock is not None:
            self._lock.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    # --- feeding ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Feed the list until cancelled."""
        while True:
            await asyncio.sleep(0 if self._locks() else _LOOK_S)
            if self._lock is None:
                continue  # somebody else feeds it
            try:
                await check_form(self._bus)
                await self._follow()
            except LogCutShort:
                await asyncio.to_thread(self.projection.remake)
            except OldForm as old:
                self.trouble = str(old)
            except Exception as error:  # any error: the rest of the page stays up
                self.trouble = one_line(f"{type(error).__name__}: {error}")
                _log.warning("ui_feed_interrupted", reason=self.trouble)
            self._folds.clear()  # they may be ahead of what was written
            await asyncio.sleep(_LOOK_S)

    async def _follow(self) -> None:
        arrived = asyncio.Queue[StoredMessage](2 * _AT_ONCE)

        async def read() -> None:
            following = JetStreamLog(self._bus, leader=False).follow(self.projection.seq + 1)
            async with contextlib.aclosing(following) as events_stored:
                async for stored in events_stored:
                    await arrived.put(stored)

        reading = asyncio.create_task(read())
        loop, tidied = asyncio.get_running_loop(), 0.0
        try:
            while True:
                taking = asyncio.create_task(arrived.get())
                await asyncio.wait({taking, reading}, timeout=_TIDY_S, return_when=asyncio.FIRST_COMPLETED)
                if taking.done():
                    part = [taking.result()]
                    while len(part) < _AT_ONCE and not arrived.empty():
                        part.append(arrived.get_nowait())
                    await self._take(part)
                    self.trouble = ""
                else:
                    taking.cancel()
                if reading.done():
                    reading.result()
                if loop.time() - tidied > _TIDY_S:
                    await self._tidy()
                    tidied = loop.time()
        finally:
            await end(reading)

    async def _take(self, part: Sequence[StoredMessage]) -> None:
        """Put some events, which follow each other, into the list."""
        begun, before = set[str](), dict[str, int]()
        for stored in part:
            seen = glance(stored.data)
            if seen is not None and seen.n == 0:
                begun.add(seen.request)
            elif seen is not None and seen.request not in begun and seen.request not in self._folds:
                before.setdefault(seen.request, seen.n)
        for request, happened in (await read_each(self._bus, before)).items():
            self._folds[request] = _folded(None if happened is None else happened[: before[request]])
        await asyncio.to_thread(self._fold, part)

    def _fold(self, part: Sequence[StoredMessage]) -> None:
        rows: dict[str, tuple[int, Listed]] = {}
        edges: list[EdgeCount] = []
        for stored in part:
            seen = glance(stored.data)
            if seen is None:
                continue
            folded = Folded() if seen.n == 0 else self._folds.get(seen.request)
            if folded is not None:
                try:
                    edge = folded.take(codec.decode_event(stored.data))
                    edges += [] if edge is None else [edge]
                except (MeshError, LookupError, TypeError, AttributeError, ValueError):
                    folded = None  # doctor and `mesh log verify` tell more; the list says that it is so
            self._folds[seen.request] = folded
            self._folds.move_to_end(seen.request)
            first = rows[seen.request][0] if seen.request in rows else stored.seq
            rows[seen.request] = (first, _unreadable(stored) if folded is None else folded.row(stored.seq))
            if seen.is_end:
                del self._folds[seen.request]
        while len(self._folds) > _KEPT:
            self._folds.popitem(last=False)
        self.projection.put(rows.values(), part[-1].seq, edges)

    async def _tidy(self) -> None:
        """Take out what the log holds no longer."""
        first, _ = await self._bus.retry_unavailable(lambda: bounds(self._bus, "LOG"))
        while await asyncio.to_thread(self.projection.forget, first):
            pass


async def end(feeding: "asyncio.Task[None]") -> None:
    """Cancel a task until it has ended: what it awaits may answer in the same moment, and it would go on."""
    while not feeding.done():
        feeding.cancel()
        await asyncio.wait({feeding}, timeout=_LOOK_S)


def _folded(happened: Sequence[AnyEvent] | None) -> Folded | None:
    """Return a request folded; None if it cannot be."""
    folded = Folded()
    try:
        for event in happened or ():
            folded.take(event)
    except MeshError:
        return None
    return folded if happened else None


def _unreadable(stored: StoredMessage) -> Listed:
    seen = glance(stored.data)
    assert seen is not None
    return Listed(
        request=seen.request,
        last=stored.seq,
        status="unreadable",
        holder="",
        client=submitter_of(seen.request),
        frozen=False,
        opened=seen.at,
        at=seen.at,
        events=seen.n + 1,
        type=seen.type,
        tags=f"client:{submitter_of(seen.request)} status:unreadable",
    )
