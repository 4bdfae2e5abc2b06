"""Anchors: what guards sign, so that the end of a request's log cannot be altered unnoticed.

In a request's log each event vouches for the one before it, but nothing vouches for the last one. So a guard
notes the newest event of each request that it appends to. Once a minute, or after a thousand events, it signs
these notes with its key and stores them. Anchors form their own chain, which all guards write: each names the
digest of the one before it.

An anchor also tells how far each running guard has anchored. From that, a starting guard learns which guards
died before they could anchor their last events. It reads these events from the log, and anchors them.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from random import uniform
from typing import TypeVar

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import StoredMessage, every, last
from mesh.bus.streams import ANCHORS, LOG
from mesh.errors import BusError, Denied, Malformed, OldForm, SequenceConflict
from mesh.service.logs import get_logger
from protocol.domain.hash_chain import link_of
from protocol.wire import codec
from protocol.wire.records import Anchor, Head, SignedAnchor
from protocol.wire.subjects import ANCHOR, EVENTS

_log = get_logger(__name__)

T = TypeVar("T")

EVERY_S = 60.0
MOST = 1000
"""Seconds between anchors, and number of events after which a guard does not wait that long."""
_MOST_HEADS = 4_000
"""Heads in one anchor: 450 KB."""
_MOST_NOTED = 100_000
"""Most requests that are noted while no anchor can be stored. Beyond that the notes are dropped to save
memory."""
_ATTEMPTS = 20
_AGAIN_S = 0.05


class Anchors:
    """Anchors what one guard appends, from `keep` until `leave`. Nothing ever waits for an anchor.

    Args:
        name: this guard's name among the others.
        others: returns the names of the other running guards.
        now: returns UTC µs.
        most: events after which it does not wait any longer.
    """

    def __init__(
        self,
        bus: Bus,
        name: str,
        others: Callable[[], Collection[str]],
        now: Callable[[], int],
        most: int = MOST,
    ) -> None:
        self._bus = bus
        self._name = name
        self._others = others
        self._now = now
        self._most = most
        self._heads: dict[str, Head] = {}
        self._events = self._seq = 0
        """Number of events not anchored yet, and the newest one's sequence."""
        self._many = asyncio.Event()
        self._off = bus.sign is None

    def stored(self, request: str, n: int, body: bytes, seq: int) -> None:
        """Note an event that this guard appended."""
        if not self._off:
            self._note(request, n, body, seq)
            self._seq = max(self._seq, seq)
            self._events += 1
            if self._events >= self._most:
                self._many.set()

    def _note(self, request: str, n: int, body: bytes, seq: int) -> None:
        head = self._heads.get(request)
        if head is None or head.n < n:
            self._heads[request] = Head(n, codec.body_digest(body), seq)

    async def keep(self) -> None:
        """Anchor what dead guards could not, then what this guard appends. Runs until cancelled."""
        await self._try(self._take_over)
        while not self._off:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._many.wait()
            self._many.clear()
            if self._events:
                await self._try(self._write)

    async def leave(self) -> None:
        """Anchor what is left, and record that this guard is gone."""
        if not self._off:
            await self._try(lambda: self._write(leaves=True))

    async def _try(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write, ignoring failures: what was not anchored is anchored the next time."""
        try:
            await write()
        except Denied:  # a server that was set up by an older version
            _log.warning("anchors_not_kept", hint="run `mesh setup`, and reload the server")
            self._off = True
        except BusError as error:
            _log.warning("anchor_late", code=error.code)
        if self._off or len(self._heads) > _MOST_NOTED:
            self._heads, self._events = {}, 0

    async def _take_over(self) -> None:
        """Anchor what guards that are gone appended, and add this guard to the running ones."""
        newest = await last(self._bus, LOG, EVENTS, leader=True)
        end = 0 if newest is None else newest.seq
        before = (await self._last())[1]
        gone = before.guards.keys() - {self._name, *self._others()}
        heads: dict[str, Head] = {}
        if gone:
            after = min(before.guards[name] for name in gone)
            async for event in every(self._bus, LOG, None, after + 1):
                with contextlib.suppress(Malformed, OldForm):
                    link = link_of(event.data)
                    heads[link.request] = Head(link.n, codec.body_digest(event.data), event.seq)
        parts = list(batched(heads.items(), _MOST_HEADS)) or [()]
        for part in parts[:-1]:
            await self._append(dict(part), end, lambda guards: guards)
        await self._append(
            dict(parts[-1]),
            end,
            lambda guards: (
                {name: seq for name, seq in guards.items() if name not in gone} | {self._name: end}
            ),
        )

    async def _write(self, *, leaves: bool = False) -> None:
        """Anchor this guard's notes."""
        heads, events, seq = self._heads, self._events, self._seq
        self._heads, self._events = {}, 0

        def at_work(guards: Mapping[str, int]) -> Mapping[str, int]:
            others = {name: at for name, at in guards.items() if name != self._name}
            return others if leaves else others | {self._name: seq}

        try:
            await self._append(heads, seq, at_work)
        except BaseException:
            self._heads, self._events = heads | self._heads, self._events + events
            raise

    async def _append(
        self,
        heads: Mapping[str, Head],
        seq: int,
        at_work: Callable[[Mapping[str, int]], Mapping[str, int]],
    ) -> None:
        """Sign and store an anchor after the newest one. Raises BusError."""
        assert self._bus.sign is not None
        for attempt in range(_ATTEMPTS):
            stored, before = await self._last()
            body = msgspec.json.encode(
                Anchor(
                    at=self._now(),
                    seq=seq,
                    heads=heads,
                    prev="" if stored is None else codec.body_digest(stored.data),
                    guards=at_work(before.guards),
                )
            )
            signed = SignedAnchor(anchor=msgspec.Raw(body), **self._bus.sign(body)._asdict())
            try:
                await self._bus.publish_durable(
                    ANCHOR, msgspec.json.encode(signed), after=0 if stored is None else stored.seq
                )
                return
            except SequenceConflict:  # another guard was first
                if attempt == _ATTEMPTS - 1:
                    raise
                await asyncio.sleep(_AGAIN_S * uniform(0.5, 1.5))

    async def _last(self) -> tuple[StoredMessage | None, Anchor]:
        """Return the newest anchor, both stored and decoded; an empty one if there is none."""
        stored = await last(self._bus, ANCHORS, ANCHOR, leader=True)
        signed = None if stored is None else codec.readable(stored.data, SignedAnchor)
        anchor = None if signed is None else codec.readable(bytes(signed.anchor), Anchor)
        return stored, anchor or Anchor(at=0, seq=0, heads={})


def batched(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """Yield the items in tuples of up to `size` (like `itertools.batched` in Python 3.12)."""
    left = iter(items)
    while part := tuple(islice(left, size)):
        yield part
