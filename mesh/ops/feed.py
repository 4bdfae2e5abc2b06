"""Feeds the index of requests from the log: each event in order, over any number of restarts.

Each request that grows is folded. The folds of open requests are cached; a fold that is no longer cached is
read again. The page feeds the index as long as it runs (`run`), the command line up to the end of the log
(`catch_up`). Any number of processes may feed one file; each keeps what the others wrote.
"""

import asyncio
import contextlib
import hashlib
import sqlite3
import tempfile
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog, check_form
from mesh.bus.reader import StoredMessage, bounds, stream_info
from mesh.errors import LogCutShort, OldForm
from mesh.ops.index import Overtaken, RequestIndex
from mesh.ops.log import header_of, patiently, read_each
from mesh.ops.rows import EdgeCount, FoldedRequest, IndexRow, folded_from, unreadable
from mesh.service.logs import get_logger
from mesh.service.printable import one_line
from protocol.wire import codec
from protocol.wire.errors import MeshError

_log = get_logger(__name__)
_POLL_S = 1.0
_TIDY_S = 300.0


class Sizes(NamedTuple):
    """How much of the log a feed holds in memory."""

    folds: int = 2_000
    """Open requests whose folds are kept."""
    written: int = 500
    """Events that are written together."""
    newest: int = 50_000
    """Events at the log's end that a partial index begins with: seconds of reading."""


SIZES = Sizes()


class IndexFeed:
    """The index of a log's requests, and what keeps it up to date: `async with IndexFeed(…) as feed`.

    Args:
        folder: folder of the file; None, or an unwritable one, means a temporary folder.
        whole: True if the index begins at the log's beginning. Otherwise a new one begins near the log's end.
        anew: True to throw away the existing index.
    """

    def __init__(
        self,
        bus: Bus,
        folder: Path | None,
        *,
        whole: bool = True,
        anew: bool = False,
        sizes: Sizes = SIZES,
    ) -> None:
        self._bus, self._folder, self._whole, self._anew = bus, folder, whole, anew
        self._sizes = sizes
        self._stack = contextlib.ExitStack()
        self._folds = OrderedDict[str, FoldedRequest | None]()
        """By request; None if it cannot be read."""
        self.trouble = ""
        """Why the index does not grow; empty if it does."""
        self.end = 0
        """Where the log ended when the feeding began."""
        self._after = 0
        """How far in the log this feed has read."""

    async def __aenter__(self) -> Self:
        """Open the index of this log as it was left. Raises BusError."""
        info = await self._stream()
        self.end = int(info["state"]["last_seq"])
        log = str(info["created"])
        self.index = await asyncio.to_thread(self._open, log)
        reached = self.index.seq
        another = reached > self.end and reached > int((await self._stream())["state"]["last_seq"])
        if another or self._anew or (self._whole and not self.index.is_whole):
            await asyncio.to_thread(self.index.remake)
        if not self._whole and self.index.seq == 0 and self.end > self._sizes.newest:
            await asyncio.to_thread(self.index.remake, self.end - self._sizes.newest + 1)
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self._stack.close)

    async def _stream(self) -> dict[str, Any]:
        return await patiently(self._bus, lambda: stream_info(self._bus, "LOG"))

    def _open(self, log: str) -> RequestIndex:
        name = f"requests-{hashlib.sha256(log.encode()).hexdigest()[:12]}.sqlite3"
        if self._folder is not None:
            try:
                return self._stack.enter_context(contextlib.closing(RequestIndex(self._folder / name, log)))
            except (OSError, sqlite3.Error) as error:  # the disk is full or cannot be written
                _log.warning("index_not_kept", folder=str(self._folder), reason=one_line(str(error)))
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="mesh-index-"))
        return self._stack.enter_context(contextlib.closing(RequestIndex(Path(folder) / name, log)))

    @property
    def behind(self) -> int:
        """Return how many places of the log, as it was at the beginning, are still to be read."""
        return max(0, self.end - self.index.seq)

    async def catch_up(self) -> None:
        """Feed the index up to the log's current end. Raises OldForm, BusError."""
        await patiently(self._bus, lambda: check_form(self._bus))
        while True:
            try:
                self._after = self.index.seq
                following = JetStreamLog(self._bus, leader=False).follow(self._after + 1, tail=False)
                async for part in _parts(following, self._sizes.written):
                    await self._take(part)
                return await self._tidy()
            except Overtaken:
                self._folds.clear()

    # --- feeding ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Feed the index until cancelled."""
        while True:
            try:
                await check_form(self._bus)
                if self._whole and not self.index.is_whole:  # a command line has begun it
                    await asyncio.to_thread(self.index.remake)
                await self._follow()
            except LogCutShort:
                await asyncio.to_thread(self.index.remake)
            except Overtaken:
                pass
            except OldForm as old:
                self.trouble = str(old)
            except sqlite3.DatabaseError as error:
                self.trouble = one_line(f"the index: {error}")
                if is_damage(error):
                    await asyncio.to_thread(self.index.replace)
            except Exception as error:  # any error: the rest of the page stays up
                self.trouble = one_line(f"{type(error).__name__}: {error}")
                _log.warning("index_feed_interrupted", reason=self.trouble)
            self._folds.clear()  # they may be ahead of what was written
            await asyncio.sleep(_POLL_S)

    async def _follow(self) -> None:
        arrived = asyncio.Queue[StoredMessage](2 * self._sizes.written)
        self._after = self.index.seq

        async def read() -> None:
            following = JetStreamLog(self._bus, leader=False).follow(self._after + 1)
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
                    while len(part) < self._sizes.written and not arrived.empty():
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
        """Put a sequence of events into the index. Raises Overtaken."""
        begun, before = set[str](), dict[str, int]()
        for stored in part:
            seen = header_of(stored.data)
            if seen is not None and seen.n == 0:
                begun.add(seen.request)
            elif seen is not None and seen.request not in begun and seen.request not in self._folds:
                before.setdefault(seen.request, seen.n)
        for request, happened in (await read_each(self._bus, before)).items():
            self._folds[request] = folded_from(None if happened is None else happened[: before[request]])
        await asyncio.to_thread(self._fold, part)

    def _fold(self, part: Sequence[StoredMessage]) -> None:
        rows: dict[str, tuple[int, IndexRow]] = {}
        edges: list[tuple[int, EdgeCount]] = []
        for stored in part:
            seen = header_of(stored.data)
            if seen is None:
                continue
            folded = FoldedRequest() if seen.n == 0 else self._folds.get(seen.request)
            if folded is not None:
                try:
                    edge = folded.take(codec.decode_event(stored.data))
                    edges += [] if edge is None else [(stored.seq, edge)]
                except (MeshError, LookupError, TypeError, AttributeError, ValueError):
                    folded = None  # doctor and `mesh log verify` show more; the list marks it
            self._folds[seen.request] = folded
            self._folds.move_to_end(seen.request)
            first, before = rows.get(seen.request, (stored.seq, None))
            row = unreadable(stored, before) if folded is None else folded.row(stored.seq)
            rows[seen.request] = (first, row)
            if seen.is_end:
                del self._folds[seen.request]
        while len(self._folds) > self._sizes.folds:
            self._folds.popitem(last=False)
        self.index.put(rows.values(), self._after, part[-1].seq, edges)
        self._after = part[-1].seq

    async def _tidy(self) -> None:
        """Remove what the log no longer holds."""
        first, _ = await self._bus.retry_unavailable(lambda: bounds(self._bus, "LOG"))
        while await asyncio.to_thread(self.index.forget, first):
            pass


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Return True if a file is damaged; False if it is only unusable now: a full disk, a lasting lock."""
    return not isinstance(error, sqlite3.OperationalError)


async def end(feeding: "asyncio.Task[None]") -> None:
    """Cancel a task until it has ended: an answer that arrives at the same moment would let it continue."""
    while not feeding.done():
        feeding.cancel()
        await asyncio.wait({feeding}, timeout=_POLL_S)


async def _parts(stored: AsyncGenerator[StoredMessage], at_once: int) -> AsyncIterator[list[StoredMessage]]:
    """Yield messages in groups that are written together."""
    part = list[StoredMessage]()
    async with contextlib.aclosing(stored):
        async for each in stored:
            part.append(each)
            if len(part) == at_once:
                yield part
                part = []
    if part:
        yield part
