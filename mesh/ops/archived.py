"""A request or a day of an archive, as a file of exported events.

`URL/app_01JAZ…` names a request and `URL/2026-11-28` a day. Everything that is read is compared with the
digests in the archive's index, and a request with the head of its chain.
"""

import re
import shutil
import tempfile
from pathlib import Path

import msgspec

from mesh.errors import ArchiveUnusable, NotFound, UsageWrong
from mesh.ops.archive import ArchivedRequest, ArchiveFiles, ArchiveIndex, DayFile, zstd
from protocol.wire import codec
from protocol.wire.ids import is_request_id, submitted_ms

_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_COPIED = 1 << 20
"""Bytes in memory while a file is unpacked."""
_REQUEST = msgspec.json.Decoder(ArchivedRequest)


async def export(source: str, folder: Path) -> Path:
    """Write the events of a request or a day into a new file in `folder`, and return it.

    Args:
        source: the archive's URL, `/`, and a request's id or a day.

    Raises UsageWrong, NotFound, ArchiveUnusable, ArtifactError.
    """
    url, _, name = source.rpartition("/")
    is_day = _DAY.fullmatch(name) is not None
    if not is_day and not is_request_id(name):
        forms = "write URL/app_01JAZ… or URL/2026-11-28"
        raise UsageWrong(f"{source!r} names neither a request nor a day of an archive: {forms}")
    zstd("an archive")
    place = ArchiveFiles(url)
    index = await place.index()
    if index is None:
        raise NotFound(f"there is no archive at {url}")
    out = folder / f"{name}.jsonl"
    if is_day:
        await _write_day(place, index, name, out)
    else:
        await _write_request(place, index, name, out)
    return out


async def _write_day(place: ArchiveFiles, index: ArchiveIndex, day: str, out: Path) -> None:
    files = [file for file in index.files if file.day == day]
    if not files:
        raise NotFound(f"no request in {place.url} ended on {day}")
    for file in files:
        await _unpacked(place, file.name, file.sha256, out)


async def _write_request(place: ArchiveFiles, index: ArchiveIndex, request: str, out: Path) -> None:
    at_ms = submitted_ms(request)
    for file in index.files:
        if file.first_ms <= at_ms <= file.last_ms:
            head = await _head_in(place, file, request)
            if head is not None:
                await _write_part(place, file, head, out)
                return
    raise NotFound(f"{place.url} holds no {request}: it is there once it has ended and is old enough")


async def _head_in(place: ArchiveFiles, file: DayFile, request: str) -> ArchivedRequest | None:
    named = b'"' + request.encode() + b'"'
    with tempfile.TemporaryDirectory(prefix="mesh-archive-") as own:
        heads = Path(own) / "heads"
        await _unpacked(place, file.heads, file.heads_sha256, heads)
        with heads.open("rb") as lines:
            for line in lines:
                if named in line:
                    return _REQUEST.decode(line)
    return None


async def _write_part(place: ArchiveFiles, file: DayFile, head: ArchivedRequest, out: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="mesh-archive-") as own:
        whole = Path(own) / "events"
        await _unpacked(place, file.name, file.sha256, whole)
        with whole.open("rb") as events:
            events.seek(head.offset)
            found = events.read(head.bytes)
    bodies = found.removesuffix(b"\n").split(b"\n")
    if len(bodies) != head.events or codec.body_digest(bodies[-1]) != head.head:
        raise ArchiveUnusable(f"{place.url} is damaged: {head.request} in {file.name} does not end as it did")
    with out.open("wb") as to:
        to.write(found)


async def _unpacked(place: ArchiveFiles, name: str, sha256: str, out: Path) -> None:
    """Append the content of a stored file to `out`. Raises ArchiveUnusable, ArtifactError."""
    library = zstd("an archive")
    with tempfile.TemporaryDirectory(prefix="mesh-archive-") as own:
        packed = Path(own) / "packed"
        await place.fetch(name, sha256, packed)
        try:
            with packed.open("rb") as file, out.open("ab") as to:
                shutil.copyfileobj(library.ZstdDecompressor().stream_reader(file), to, _COPIED)
        except library.ZstdError as wrong:
            raise ArchiveUnusable(f"{place.url}: {name} cannot be unpacked: {wrong}") from None
