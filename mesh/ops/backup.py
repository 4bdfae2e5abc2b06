"""`mesh backup`: a folder from which `mesh restore` makes the same mesh again.

The log is copied first, up to its last sequence when the backup begins. All other streams are copied after
it, except for anchors of later events. So journals may be newer than the log, and are never older: a turn
that is run again finds every step that it had taken. What derives from the log is not copied: queues, timers,
questions, marks of ended turns. `mesh restore` makes these from the log.

A folder has a `manifest.json`, and for each stream files of one message per line, in the stream's order. A
second backup into a folder adds what is new. Files that the manifest does not name were left by an
interrupted backup.
"""

import base64
import contextlib
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.copying import WholeMessage, whole
from mesh.bus.event_log import check_form
from mesh.bus.reader import listing
from mesh.bus.streams import ANCHORS, LOG, SCHEMA, SCHEMA_KEY, kind_of
from mesh.errors import BackupUnusable
from mesh.ops.roster import fleet_of
from protocol.wire import codec

FORM = 1
"""Version of the folder's format. A reader refuses a newer one."""
MANIFEST = "manifest.json"
_FILE_BYTES = 64 << 20
"""A file is closed, and added to the manifest, once it has this many bytes."""
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
    """False while a backup is under way, and after an interrupted one."""
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

    An interrupted backup is continued. Needs the admin's credentials.

    Raises BackupUnusable if the folder holds something else, OSError, OldForm, BusError.
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
    there = (await listing(bus)).streams
    state = there[LOG]["state"]
    ends = {ANCHORS: anchors, LOG: int(state["last_seq"])}
    before = _begin(folder, fleet.name, {name: info["created"] for name, info in there.items()})
    await _check_same_log(bus, before, int(state["first_seq"]))
    streams = {name: _stream(info, before.streams.get(name)) for name, info in there.items()}
    manifest = msgspec.structs.replace(before, whole=False, streams={**before.streams, **streams})
    _write(folder, manifest)
    for name in sorted(filter(_is_copied, there), key=lambda name: name != LOG):
        end = ends[name] if name in ends else await _end_of(bus, name)
        async for copied in _copy(bus, folder, name, manifest.streams[name], end, progress):
            manifest = msgspec.structs.replace(manifest, streams={**manifest.streams, name: copied})
            _write(folder, manifest)
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
    return manifest


def _is_copied(stream: str) -> bool:
    return kind_of(stream) is None and stream not in _DERIVED


async def _end_of(bus: Bus, stream: str) -> int:
    return int((await bus.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"])


def _stream(info: dict[str, Any], before: BackupStream | None) -> BackupStream:
    if before is None:
        return BackupStream(config=info["config"], created=info["created"])
    return msgspec.structs.replace(before, config=info["config"])


def _begin(folder: Path, mesh: str, created: dict[str, str]) -> Manifest:
    """Return the manifest of a folder, or a new one for an empty folder. Raises BackupUnusable, OSError."""
    if not (folder / MANIFEST).exists():
        if any(folder.iterdir()):
            raise BackupUnusable(f"{folder} is not empty and holds no backup: name another folder")
        return Manifest(mesh=mesh)
    before = read_manifest(folder)
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
    began, writing = stream.through, None
    try:
        async for part in whole(bus, name, began + 1, end):
            if name == LOG:
                _check_dense(part, stream.through if writing is None else writing.last)
            writing = writing or _File(folder, name, part[0].seq)
            writing.write(part)
            progress(name, part[-1].seq - began, end - began)
            if writing.bytes >= _FILE_BYTES:
                stream = _with(stream, writing.close(), writing.last)
                writing = None
                yield stream
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
    path, part = folder / MANIFEST, folder / f".{MANIFEST}.part"
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
    """Return a folder's manifest. Raises BackupUnusable."""
    try:
        text = (folder / MANIFEST).read_bytes()
    except OSError as wrong:
        raise BackupUnusable(f"{folder} holds no backup: {MANIFEST}: {wrong.strerror}") from wrong
    form = codec.readable(text, _Form)
    if form is not None and form.form > FORM:
        raise BackupUnusable(
            f"{folder} has form {form.form}, and this version reads up to {FORM}: restore with a newer one"
        )
    manifest = codec.readable(text, Manifest)
    if manifest is None:
        raise BackupUnusable(f"{folder}: {MANIFEST} cannot be read: it was altered or cut short")
    return manifest


def whole_manifest(folder: Path) -> Manifest:
    """Return a folder's manifest, after reading every file and checking that it is as the backup wrote it.

    Raises BackupUnusable.
    """
    manifest = read_manifest(folder)
    if not manifest.whole or LOG not in manifest.streams:
        raise BackupUnusable(
            f"{folder} holds half a backup: run mesh backup once more, which goes on with it"
        )
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
