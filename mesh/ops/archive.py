"""`mesh log archive`: ended requests, whole, as files by day in a folder or an object store.

An archive has, below its URL:

    archive.json                    the index: which log, how far, and every file with its digest
    days/DAY-SEQ-DIGEST.jsonl.zst   requests that ended on a day, one after the other: a stored event a line
    heads/DAY-SEQ-DIGEST.jsonl.zst  what is in the file of a day: each request, and the head of its chain

A file of a day, once it is unpacked, is an export. Files are never changed: their names hold the beginning of
their digest. The index is written after the files that it names, so an archive is whole at any time. A killed
run leaves files that no index names; the next run begins where the index ends.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Self
from urllib.parse import unquote, urlsplit

import msgspec

from mesh.artifacts.bucket import VARIABLES, Bucket
from mesh.artifacts.store import DigestCheck, Folder, content_of
from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog, check_form
from mesh.bus.reader import StoredMessage, batch, bounds, get_seq
from mesh.bus.streams import LOG
from mesh.errors import (
    ArchiveUnusable,
    ArtifactDigestMismatch,
    ArtifactMissing,
    BusError,
    LogUnreadable,
    Malformed,
    MeshError,
    UsageWrong,
)
from mesh.ops.checks import Results
from mesh.ops.log import EventHeader, header_of, patiently
from mesh.ops.roster import fleet_of
from mesh.service.printable import counted, when
from protocol.wire import codec
from protocol.wire.ids import is_request_id, submitted_ms
from protocol.wire.prices import DAY_S
from protocol.wire.subjects import evt_of

FORM = 1
"""Version of the archive's format. A reader refuses a newer one."""
INDEX = "archive.json"
_SOON = 0.1
"""Part of an event's time in the log: for so long before its end it should be in the archive."""
_FILE_BYTES = 64 << 20
"""A day has another file once its last has this many bytes, before they are packed."""


class DayFile(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that ended on one day."""

    day: str
    """UTC, as 2026-11-28."""
    name: str
    """Relative to the archive, like `heads`."""
    sha256: str
    """Of the file as it is stored, in hex."""
    heads: str
    heads_sha256: str
    requests: int
    events: int
    bytes: int
    """Of its events, unpacked."""
    first_ms: int
    last_ms: int
    """The earliest and the latest time in its requests' ids, UTC ms."""


class ArchivedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request in a file of a day."""

    request: str
    events: int
    head: str
    """SHA-256 (hex) of its last event, which vouches for all before it."""
    offset: int
    bytes: int
    """Its place in the unpacked file."""


class ArchiveIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive holds."""

    form: int = FORM
    mesh: str
    """Name of the fleet."""
    through: int = 0
    """Every request that ended up to this sequence of the log is in the files, or could not be read whole."""
    head: str = ""
    """SHA-256 (hex) of the event there: it identifies this log."""
    until: int = 0
    """When that event was made, UTC µs."""
    files: tuple[DayFile, ...] = ()

    @property
    def requests(self) -> int:
        return sum(file.requests for file in self.files)


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """What one run did."""

    index: ArchiveIndex
    files: int
    requests: int
    events: int
    left_out: tuple[str, ...]
    """Requests whose first events the log had already lost, or that cannot be read."""
    gone: int
    """How many events the log had lost since the last run; requests among them are in no archive."""


def zstd(why: str) -> ModuleType:
    """Return the library that packs files. Raises UsageWrong where the extra is not installed."""
    try:
        import zstandard
    except ImportError:
        needed = "the extra `artifacts`: pip install 'handoff-mesh[artifacts]'"
        raise UsageWrong(f"{why} takes {needed}") from None
    return zstandard


class ArchiveFiles:
    """The files of an archive. Raises UsageWrong for what is no URL of one, and StoreExtraMissing."""

    def __init__(self, url: str) -> None:
        kind, _, rest = url.partition("://")
        if kind not in ("file", *VARIABLES) or (kind == "file" and not rest.startswith("/")):
            buckets = ", ".join(f"{each}://…" for each in VARIABLES)
            known = f"write file:///folder, or a bucket at {buckets}"
            raise UsageWrong(f"{url!r} is no URL of an archive: {known}")
        self.url = url
        self._objects = Folder(Path(unquote(urlsplit(url).path))) if kind == "file" else Bucket(url)

    async def index(self) -> ArchiveIndex | None:
        """Return the index; None if there is none. Raises ArchiveUnusable, ArtifactError."""
        found = bytearray()
        try:
            async with aclosing(self._objects.chunks(INDEX)) as chunks:
                async for chunk in chunks:
                    found += chunk
        except ArtifactMissing:
            return None
        try:
            form = msgspec.json.decode(found)["form"]
            if form != FORM:
                raise ArchiveUnusable(f"{self.url} has the form {form}; this build reads form {FORM}")
            return msgspec.json.decode(found, type=ArchiveIndex)
        except (msgspec.MsgspecError, UnicodeError, LookupError, TypeError):
            raise ArchiveUnusable(f"{self.url}: {INDEX} is damaged, or not of an archive") from None

    async def write_index(self, index: ArchiveIndex) -> None:
        """Replace the index. Raises ArtifactError."""
        await self._objects.replace(INDEX, msgspec.json.format(msgspec.json.encode(index)))

    async def put(self, key: str, file: Path) -> tuple[str, str]:
        """Store a file; return its name, which begins with `key`, and its digest. Raises ArtifactError."""
        async with content_of(file) as content:
            folder, _, stem = key.partition("/")
            name = f"{folder}/{stem}-{content.digest[:16]}.jsonl.zst"
            await self._objects.put(name, content)
            return name, content.digest

    async def fetch(self, name: str, sha256: str, to: Path) -> None:
        """Copy a file, and check it. Raises ArchiveUnusable, ArtifactError."""
        check = DigestCheck(sha256)
        try:
            with to.open("wb") as file:
                async with aclosing(self._objects.chunks(name)) as chunks:
                    async for chunk in chunks:
                        check.update(chunk)
                        file.write(chunk)
            check.finish("it was changed or cut")
        except ArtifactMissing:
            raise ArchiveUnusable(f"{self.url} is not whole: {name} is missing") from None
        except ArtifactDigestMismatch as changed:
            raise ArchiveUnusable(f"{self.url} is damaged: {name}: {changed}") from None


class _Writing:
    """A file of a day while it is filled, and the one of its heads: packed, in a folder of its own."""

    def __init__(self, day: str, seq: int) -> None:
        self.day, self._seq = day, seq
        self.size = self.requests = self.events = 0
        """Bytes, requests and events so far."""
        self._folder = tempfile.TemporaryDirectory(prefix="mesh-archive-")
        self._events, self._heads = (Path(self._folder.name) / name for name in ("events", "heads"))
        library = zstd("an archive")
        self._files = [path.open("wb") for path in (self._events, self._heads)]
        self._packers = [
            library.ZstdCompressor(write_checksum=True).stream_writer(file, closefd=True)
            for file in self._files
        ]
        self._first_ms, self._last_ms = 1 << 63, 0

    def discard(self) -> None:
        """Remove both files from this machine."""
        for file in self._files:
            file.close()
        self._folder.cleanup()

    def add(self, request: str, bodies: list[bytes]) -> None:
        """Add an ended request."""
        lines = b"\n".join((*bodies, b""))
        head = ArchivedRequest(
            request=request,
            events=len(bodies),
            head=codec.body_digest(bodies[-1]),
            offset=self.size,
            bytes=len(lines),
        )
        events, heads = self._packers
        events.write(lines)
        heads.write(msgspec.json.encode(head) + b"\n")
        at_ms = submitted_ms(request)
        self._first_ms, self._last_ms = min(self._first_ms, at_ms), max(self._last_ms, at_ms)
        self.size += len(lines)
        self.requests += 1
        self.events += len(bodies)

    async def store(self, place: ArchiveFiles) -> DayFile:
        """Store both files. Raises ArtifactError."""
        for packer in self._packers:
            packer.close()
        stem = f"{self.day}-{self._seq:012d}"
        name, sha256 = await place.put(f"days/{stem}", self._events)
        heads, heads_sha256 = await place.put(f"heads/{stem}", self._heads)
        return DayFile(
            day=self.day,
            name=name,
            sha256=sha256,
            heads=heads,
            heads_sha256=heads_sha256,
            requests=self.requests,
            events=self.events,
            bytes=self.size,
            first_ms=self._first_ms,
            last_ms=self._last_ms,
        )


async def archive(
    bus: Bus,
    url: str,
    *,
    older_than_s: float,
    file_bytes: int = _FILE_BYTES,
    on_file: Callable[[DayFile], None] = lambda file: None,
) -> Archived:
    """Add the requests to an archive that ended a while ago and are not in it; return what was added.

    One request at a time is in memory. Nothing is removed from the log. A viewer's credentials are enough.

    Args:
        older_than_s: how long ago a request must have ended (s).
        file_bytes: a day has another file once its last has this many bytes.
        on_file: called with each file once the index names it.

    Raises ArchiveUnusable, ArtifactError, UsageWrong, OldForm, BusError.
    """
    zstd("an archive")
    place, before_us = ArchiveFiles(url), int((time.time() - older_than_s) * 1e6)
    await check_form(bus)
    mesh = (await fleet_of(bus)).name
    before = await place.index() or ArchiveIndex(mesh=mesh)
    gone = await _check_same_log(bus, place, before, mesh)
    with _Adding(bus, place, before, file_bytes, on_file) as adding:
        async with aclosing(JetStreamLog(bus).follow(before.through + 1, tail=False)) as log:
            async for stored in log:
                event = header_of(stored.data)
                if event is not None and event.at >= before_us:
                    break
                if event is not None and event.is_end:
                    await adding.take(event, stored)
                adding.reached = stored
        index = await adding.finish()
    added = index.files[len(before.files) :]
    return Archived(
        index=index,
        files=len(added),
        requests=sum(file.requests for file in added),
        events=sum(file.events for file in added),
        left_out=tuple(adding.left_out),
        gone=gone,
    )


async def losses(bus: Bus, url: str) -> Results:
    """Yield when the log loses events by age next, and whether they are archived by then. Raises BusError.

    Args:
        url: of the archive; empty if the fleet file names none.
    """
    first, last = await bounds(bus, LOG)
    oldest = await get_seq(bus, LOG, first) if first <= last else None
    if oldest is None:
        return
    fleet, now = await fleet_of(bus), int(time.time() * 1e6)
    kept_us = int(fleet.log_max_age_s * 1e6)
    left_s = max(0, oldest.at + kept_us - now) / 1e6
    left = f"{left_s / DAY_S:.0f} d" if left_s >= DAY_S else f"{left_s / 3600:.1f} h"
    loss = f"next loss in {left}"
    if not url:
        yield "ok", f"{loss}, and no archive is named ([log] archive)"
        return
    try:
        place = ArchiveFiles(url)
        index = await place.index() or ArchiveIndex(mesh=fleet.name)
        gone = await _check_same_log(bus, place, index, fleet.name)
    except BusError:
        raise
    except ArchiveUnusable as wrong:
        yield "found", f"{loss}; {wrong}"
        return
    except MeshError as wrong:
        yield "unknown", f"{loss}; {url} cannot be read: {wrong} [{wrong.code}]"
        return
    until = f"archived until {when(index.until)}" if index.until else "nothing is archived"
    unseen = max(first, index.through + 1)
    following = await get_seq(bus, LOG, unseen) if unseen <= last else None
    if gone:
        yield "found", f"{loss}, {until}: {counted(gone, 'event')} left the log since then"
    elif following is not None and following.at + kept_us * (1 - _SOON) < now:
        yield "found", f"{loss}, {until}: mesh log archive, or it loses what is in no archive"
    else:
        yield "ok", f"{loss}, {until}"


async def _check_same_log(bus: Bus, place: ArchiveFiles, index: ArchiveIndex, mesh: str) -> int:
    """Return how many events the log lost after the archive's end. Raises ArchiveUnusable for another log."""
    if index.mesh != mesh:
        whose = f"of {index.mesh!r}, not of {mesh!r}"
        raise ArchiveUnusable(f"{place.url} is an archive {whose}: name another URL")
    if not index.through:
        return 0
    first, last = await bounds(bus, LOG)
    there = await get_seq(bus, LOG, index.through) if first <= index.through <= last else None
    if last < index.through or (there is not None and codec.body_digest(there.data) != index.head):
        raise ArchiveUnusable(
            f"event {index.through} of the log is not the one at which {place.url} ends: this is another "
            "log, or one that was restored to an earlier place; name another URL"
        )
    return max(0, first - index.through - 1)


class _Adding:
    """Adds requests to an archive, one after the other."""

    def __init__(
        self,
        bus: Bus,
        place: ArchiveFiles,
        index: ArchiveIndex,
        file_bytes: int,
        on_file: Callable[[DayFile], None],
    ) -> None:
        self._bus, self._place, self._index = bus, place, index
        self._log = JetStreamLog(bus, leader=False)
        self._file_bytes, self._on_file = file_bytes, on_file
        self._writing: _Writing | None = None
        self.reached: StoredMessage | None = None
        """The last event of the log whose request, if it ended there, was taken."""
        self.left_out: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writing is not None:
            self._writing.discard()

    async def take(self, end: EventHeader, stored: StoredMessage) -> None:
        """Take the request that ended with this event. Raises ArtifactError, BusError, LogUnreadable."""
        bodies = await self._whole(end.request, stored.seq)
        if bodies is None:
            return
        day = datetime.fromtimestamp(end.at / 1e6, UTC).date().isoformat()
        if self._writing is not None and (self._writing.day != day or self._writing.size >= self._file_bytes):
            await self._close()
        if self._writing is None:
            self._writing = _Writing(day, stored.seq)
        self._writing.add(end.request, bodies)

    async def _whole(self, request: str, end: int) -> list[bytes] | None:
        """Return all events of a request; None if it has no beginning any more, or did not end there."""
        if not is_request_id(request):
            self.left_out.append(request)
            return None
        try:
            found = await patiently(self._bus, lambda: self._log.read(request))
        except Malformed:
            self.left_out.append(request)
            return None
        except LogUnreadable:
            kept = await batch(self._bus, LOG, evt_of(request), 1, 1)
            first = header_of(kept[0].data) if kept else None
            if first is not None and first.n == 0:
                raise  # all of it is there, and will be read another time
            self.left_out.append(request)
            return None
        return [each.data for each in found] if found and found[-1].seq == end else None

    async def _close(self) -> None:
        """Store the file that is filled, then the index that names it. Raises ArtifactError."""
        index = self._index
        if self.reached is not None:
            event = header_of(self.reached.data)
            index = msgspec.structs.replace(
                index,
                through=self.reached.seq,
                head=codec.body_digest(self.reached.data),
                until=index.until if event is None else event.at,
            )
        file: DayFile | None = None
        if self._writing is not None:
            file = await self._writing.store(self._place)
            self._writing.discard()
            self._writing = None
            index = msgspec.structs.replace(index, files=(*index.files, file))
        await self._place.write_index(index)
        self._index = index
        if file is not None:
            self._on_file(file)

    async def finish(self) -> ArchiveIndex:
        """Store what is left, and return the index. Raises ArtifactError."""
        if self.reached is not None:
            await self._close()
        return self._index
