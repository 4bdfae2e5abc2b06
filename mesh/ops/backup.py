"""`mesh backup`: a folder from which `mesh restore` makes the same mesh again.

The log is copied first, up to its last sequence when the backup begins. All other streams are copied after
it, except for anchors of later events. So journals may be newer than the log, and are never older: a turn
that is run again finds every step that it had taken. What derives from the log is not copied: queues, timers,
questions, marks of ended turns. `mesh restore` makes these from the log.

A folder has a `manifest.json`, and for each stream files of one message per line, in the stream's order. A
second backup into a folder adds what is new. Until it is whole, `manifest.part.json` says how far it is, and
the manifest stays that of the backup before: a restore takes that one. Files that neither names were left by
an interrupted backup.
"""

import base64
import contextlib
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.copying import WholeMessage, whole
from mesh.bus.event_log import check_form
from mesh.bus.reader import bounds, listing
from mesh.bus.streams import ANCHORS, LOG, SCHEMA, SCHEMA_KEY, kind_of
from mesh.errors import BackupUnusable, NoResponders
from mesh.ops.roster import fleet_of
from protocol.wire import codec

FORM = 1
"""Version of the folder's format. A reader refuses a newer one."""
MANIFEST = "manifest.json"
_PROGRESS = "manifest.part.json"
"""The manifest of a backup that is under way. It takes the manifest's place once the backup is whole."""
_FILE_BYTES = 64 << 20
"""A file is closed, and added to the manifest, once it has this many bytes."""
_CONF = "CONF"
_DERIVED = frozenset({"ENDS", "ASKS"})
"""Streams that a restore makes from the log, because they must not be newer than it."""

Progress = Callable[[str, int, int], None]
"""Called with a stream, the number of its copied messages, and their total."""


class BackupFile(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a stream's messages."""

    name: str
    """Relative to the folder."""
    first: int
    last: int
    """Sequences of its first and its last message."""
    messages: int
    bytes: int
    sha256: str
    """Of the whole file, in hex."""


class BackupStream(msgspec.Struct, frozen=True, kw_only=True):
    """One stream: its configuration, and how much of it is copied."""

    config: dict[str, Any]
    """As JetStream spells it."""
    created: str = ""
    """When the server made it, RFC 3339."""
    through: int = 0
    """Every message up to this sequence is in the files, or no longer existed."""
    files: tuple[BackupFile, ...] = ()

    @property
    def messages(self) -> int:
        return sum(file.messages for file in self.files)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup folder holds."""

    form: int = FORM
    mesh: str
    """Name of the fleet."""
    whole: bool = False
    """False while a folder's first backup is under way, and after an interrupted one."""
    through: int = 0
    """The log's last sequence."""
    head: str = ""
    """SHA-256 (hex) of the event there: it identifies this log."""
    at: str = ""
    """When that event was stored, RFC 3339."""
    streams: dict[str, BackupStream] = {}

    @property
    def messages(self) -> int:
        return sum(stream.messages for stream in self.streams.values())

    @property
    def bytes(self) -> int:
        return sum(file.bytes for stream in self.streams.values() for file in stream.files)


async def backup(bus: Bus, folder: Path, progress: Progress = lambda *_: None) -> Manifest:
    """Copy the mesh into a folder, or add what is new since the last backup there; return what it holds.

    An interrupted backup is continued. Until this one is whole, the folder restores as the backup before it.
    Needs the admin's credentials.

    Raises BackupUnusable if the folder holds something else or the log lacks events, OSError, OldForm,
    BusError.
    """
    with _alone(folder):
        return await _backup(bus, folder, progress)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other backups out of a folder until this one ends or dies. Raises BackupUnusable, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise BackupUnusable(f"another backup into {folder} is under way: wait for its end") from None
    finally:
        os.close(opened)


async def _backup(bus: Bus, folder: Path, progress: Progress) -> Manifest:
    await check_form(bus)
    fleet = await fleet_of(bus)
    anchors = await _end_of(bus, ANCHORS)  # before the log, so that they vouch only for copied events
    there = await _all_streams(bus)
    state = there[LOG]["state"]
    ends = {ANCHORS: anchors, LOG: int(state["last_seq"])}
    before = _begin(folder, fleet.name, {name: info["created"] for name, info in there.items()})
    await _check_same_log(bus, before, int(state["first_seq"]))
    manifest = _with_streams(msgspec.structs.replace(before, whole=False), there)
    _write(folder, manifest)

    async def copy(names: Iterable[str]) -> None:
        nonlocal manifest
        for name in names:
            end = ends[name] if name in ends else await _end_of(bus, name)
            async for copied in _copy(bus, folder, name, manifest.streams[name], end, progress):
                manifest = msgspec.structs.replace(manifest, streams={**manifest.streams, name: copied})
                _write(folder, manifest)

    await copy((LOG, _CONF))
    # An agent may have joined meanwhile. It is in the fleet that was copied, so its streams have to be, too.
    there = await _all_streams(bus)
    manifest = _with_streams(manifest, there)
    _write(folder, manifest)
    await copy(sorted(name for name in there if _is_copied(name) and name not in (LOG, _CONF)))
    through = manifest.streams[LOG].through
    last = [each async for part in whole(bus, LOG, through, through) for each in part] if through else []
    manifest = msgspec.structs.replace(
        manifest,
        whole=True,
        through=through,
        head=codec.body_digest(last[0].data) if last else "",
        at=last[0].stamp if last else "",
    )
    _write(folder, manifest)
    (folder / _PROGRESS).replace(folder / MANIFEST)
    _sync(folder)
    return manifest


async def _all_streams(bus: Bus) -> dict[str, dict[str, Any]]:
    """Return configuration and state of all streams, by name. Raises NoResponders if one has no leader."""
    found = await listing(bus)
    if found.leaderless:  # without it, the backup could not be restored
        raise NoResponders(f"streams without a leader at the moment: {', '.join(sorted(found.leaderless))}")
    return found.streams


def _is_copied(stream: str) -> bool:
    return kind_of(stream) is None and stream not in _DERIVED


async def _end_of(bus: Bus, stream: str) -> int:
    return int((await bus.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"])


def _stream(info: dict[str, Any], before: BackupStream | None) -> BackupStream:
    if before is None:
        return BackupStream(config=info["config"], created=info["created"])
    return msgspec.structs.replace(before, config=info["config"])


def _with_streams(manifest: Manifest, there: dict[str, dict[str, Any]]) -> Manifest:
    """Return a manifest with the streams that there are now, and what is copied of each."""
    streams = {name: _stream(info, manifest.streams.get(name)) for name, info in there.items()}
    return msgspec.structs.replace(manifest, streams={**manifest.streams, **streams})


def _begin(folder: Path, mesh: str, created: dict[str, str]) -> Manifest:
    """Return with what a backup into a folder begins: an interrupted one, the last one, or nothing.

    Raises BackupUnusable, OSError.
    """
    if _is_under_way(folder):
        before = _read(folder, _PROGRESS)
    elif (folder / MANIFEST).exists():
        before = read_manifest(folder)
    elif any(folder.iterdir()):
        raise BackupUnusable(f"{folder} is not empty and holds no backup: name another folder")
    else:
        return Manifest(mesh=mesh)
    if before.mesh != mesh:
        raise BackupUnusable(f"{folder} holds a backup of the mesh {before.mesh}, and this one is {mesh}")
    anew = [name for name, each in before.streams.items() if created.get(name, each.created) != each.created]
    if anew:
        raise BackupUnusable(
            f"{folder}: the bus was made anew since this backup began ({', '.join(sorted(anew))}): "
            "name another folder"
        )
    return before


async def _check_same_log(bus: Bus, before: Manifest, first: int) -> None:
    """Raise BackupUnusable if the log does not continue where a backup ends."""
    copied = before.streams.get(LOG)
    if copied is None or not copied.through:
        return
    if first > copied.through + 1:
        raise BackupUnusable(
            f"the backup ends at event {copied.through}, and the log begins at {first} now: what was between "
            "has aged out; name another folder"
        )
    if before.through:
        found = [each async for part in whole(bus, LOG, before.through, before.through) for each in part]
        if first <= before.through and (not found or codec.body_digest(found[0].data) != before.head):
            raise BackupUnusable(
                f"event {before.through} of the log is not the one in the backup: this is another log, or "
                "one that was restored to an earlier place; name another folder"
            )


# --- files ----------------------------------------------------------------------------------------


async def _copy(
    bus: Bus, folder: Path, name: str, stream: BackupStream, end: int, progress: Progress
) -> AsyncIterator[BackupStream]:
    """Copy what is new in a stream, up to `end`; yield the stream after each file."""
    (folder / name).mkdir(mode=0o700, exist_ok=True)
    began, last, writing = stream.through, stream.through, None
    try:
        async for part in whole(bus, name, began + 1, end):
            if name == LOG:
                _check_dense(part, last)
            last = part[-1].seq
            writing = writing or _File(folder, name, part[0].seq)
            writing.write(part)
            progress(name, last - began, end - began)
            if writing.bytes >= _FILE_BYTES:
                stream = _with(stream, writing.close(), writing.last)
                writing = None
                yield stream
        if name == LOG and last < end:
            await _check_end(bus, last, end, is_new=not stream.files and writing is None)
        yield _with(stream, writing.close() if writing is not None else None, end)
    finally:
        if writing is not None:
            writing.file.close()


def _with(stream: BackupStream, file: BackupFile | None, through: int) -> BackupStream:
    files = stream.files if file is None else (*stream.files, file)
    return msgspec.structs.replace(stream, files=files, through=max(stream.through, through))


def _check_dense(part: list[WholeMessage], last: int) -> None:
    """Raise BackupUnusable if the log lost an event after `last`; 0: the first one may be any."""
    for each in part:
        if last and each.seq != last + 1:
            raise BackupUnusable(
                f"{LOG}: the events between {last} and {each.seq} are missing; look with mesh log verify"
            )
        last = each.seq


async def _check_end(bus: Bus, last: int, end: int, *, is_new: bool) -> None:
    """Raise BackupUnusable if the log lacks the events after `last`, unless all of it has aged out.

    Args:
        is_new: no event is copied. Otherwise the next ones would follow a hole, and could not be restored.
    """
    first, _ = await bus.retry_unavailable(lambda: bounds(bus, LOG))
    if not is_new or first <= end:
        raise BackupUnusable(
            f"{LOG}: the events from {last + 1} to {end} are missing; look with mesh log verify, and name "
            "another folder if they have aged out"
        )


class _File:
    """A file that is being written. It gets its name only once it is complete and on the disk."""

    def __init__(self, folder: Path, stream: str, first: int) -> None:
        self.name = f"{stream}/{first:020}.jsonl"
        self._path = folder / self.name
        self._part = self._path.with_suffix(".part")
        self.file: BinaryIO = os.fdopen(
            os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"
        )
        self._digest = hashlib.sha256()
        self.first = self.last = first
        self.bytes = self._messages = 0

    def write(self, messages: list[WholeMessage]) -> None:
        text = b"".join(map(line_of, messages))
        self.file.write(text)
        self._digest.update(text)
        self.bytes += len(text)
        self._messages += len(messages)
        self.last = messages[-1].seq

    def close(self) -> BackupFile:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self._part.replace(self._path)
        _sync(self._path.parent)
        return BackupFile(
            name=self.name,
            first=self.first,
            last=self.last,
            messages=self._messages,
            bytes=self.bytes,
            sha256=self._digest.hexdigest(),
        )


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    seq: int
    subject: str
    headers: dict[str, str] = {}
    body: msgspec.Raw = msgspec.Raw()
    base64: str = ""
    """The bytes of a message that are not JSON on one line."""


_LINE = msgspec.json.Decoder(_Line)
_ANY = msgspec.json.Decoder(msgspec.Raw)


def line_of(message: WholeMessage) -> bytes:
    """Return a message as one line, from which `message_of` makes exactly the same bytes."""
    head = msgspec.json.encode(_Line(message.seq, message.subject, dict(message.headers)))
    data = message.data
    if data and b"\n" not in data and b"\r" not in data and _is_json(data):
        return head[:-1] + b',"body":' + data + b"}\n"
    return head[:-1] + b',"base64":"' + base64.b64encode(data) + b'"}\n'


def _is_json(data: bytes) -> bool:
    try:
        found = _ANY.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return len(memoryview(found)) == len(data)  # without surrounding space, which a reader would drop


def message_of(line: bytes) -> WholeMessage:
    """Return the message in a line. Raises msgspec.MsgspecError, ValueError."""
    read = _LINE.decode(line)
    data = bytes(read.body) if len(memoryview(read.body)) else base64.b64decode(read.base64)
    return WholeMessage(read.seq, read.subject, read.headers, data)


def _write(folder: Path, manifest: Manifest) -> None:
    """Write how far a backup is. The manifest of the backup before it stays until this one is whole."""
    path, part = folder / _PROGRESS, folder / f".{MANIFEST}.part"
    with _private(part) as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest)))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _sync(folder)


def _private(path: Path) -> BinaryIO:
    """Open a file that only its owner can read: it holds what clients wrote."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def _sync(folder: Path) -> None:
    """Make sure that a folder's names are on the disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


# --- reading a folder -----------------------------------------------------------------------------


class _Form(msgspec.Struct, frozen=True):
    form: int


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder's last whole backup. Raises BackupUnusable.

    It is half a one if an earlier version of this program was interrupted.
    """
    return _read(folder, MANIFEST)


def _is_under_way(folder: Path) -> bool:
    """Return True if a backup into a folder is under way, or was interrupted."""
    return (folder / _PROGRESS).exists()


def _read(folder: Path, name: str) -> Manifest:
    try:
        text = (folder / name).read_bytes()
    except OSError as wrong:
        raise BackupUnusable(f"{folder} holds no backup: {name}: {wrong.strerror}") from wrong
    form = codec.readable(text, _Form)
    if form is not None and form.form > FORM:
        raise BackupUnusable(
            f"{folder} has form {form.form}, and this version reads up to {FORM}: restore with a newer one"
        )
    manifest = codec.readable(text, Manifest)
    if manifest is None:
        raise BackupUnusable(f"{folder}: {name} cannot be read: it was altered or cut short")
    return manifest


def whole_manifest(folder: Path) -> Manifest:
    """Return a folder's manifest, after reading every file and checking that it is as the backup wrote it.

    A backup that was interrupted does not count, if there is a whole one before it. Raises BackupUnusable.
    """
    half = f"{folder} holds half a backup: run mesh backup once more, which goes on with it"
    if _is_under_way(folder) and not (folder / MANIFEST).exists():
        raise BackupUnusable(half)
    manifest = read_manifest(folder)
    if not manifest.whole or LOG not in manifest.streams:
        raise BackupUnusable(half)
    for stream in manifest.streams.values():
        schema = int((stream.config.get("metadata") or {}).get(SCHEMA_KEY, 0))
        if schema > SCHEMA:
            raise BackupUnusable(
                f"{folder} has schema {schema}, and this version knows {SCHEMA}: it is of a newer version"
            )
        for file in stream.files:
            _check_file(folder, file)
    return manifest


def _check_file(folder: Path, file: BackupFile) -> None:
    try:
        with (folder / file.name).open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as wrong:
        raise BackupUnusable(f"{folder / file.name}: {wrong.strerror}: the backup is not whole") from wrong
    if digest != file.sha256:
        raise BackupUnusable(
            f"{folder / file.name} was altered: its SHA-256 is {digest}, and was {file.sha256}"
        )


def messages_in(folder: Path, stream: BackupStream) -> Iterator[WholeMessage]:
    """Yield a stream's messages in order. Raises BackupUnusable with file and line."""
    for file in stream.files:
        with (folder / file.name).open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield message_of(line)
                except (msgspec.MsgspecError, ValueError) as broken:
                    raise BackupUnusable(f"{folder / file.name}, line {number} is no message") from broken
