"""The fleet's store: artifacts are saved under their digest, and read only if the digest matches.

A URI is `mesh-artifact:sha256/<64 hex digits>`. It names no folder and no bucket, so it can only mean an
object in the configured store, and it stays valid when that store moves.

The digest must be known before the first byte is stored, so a file is read twice. A stream is first written
to a temporary file, which has no name, so a killed process leaves nothing behind.
"""

import asyncio
import functools
import hashlib
import io
import os
import re
import secrets
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, Self

from mesh.errors import (
    ArtifactDenied,
    ArtifactDigestMismatch,
    ArtifactForeign,
    ArtifactMissing,
    ArtifactTooLarge,
    StoreUnusable,
)
from protocol.wire.handoff import Artifact

Data = bytes | bytearray | memoryview | os.PathLike[str] | AsyncIterable[bytes]
"""What can be saved: bytes, a file, or a stream of bytes. For text, encode it or pass its `Path`."""

CHUNK = 1 << 20
"""Bytes in memory while copying from or to a file."""


class Content(NamedTuple):
    """Bytes that can be read more than once."""

    digest: str
    """SHA-256, hex."""
    size: int
    """Bytes."""
    opened: Callable[[], AbstractContextManager[BinaryIO]]

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes. Raises ArtifactDigestMismatch at the end if they have changed."""
        check = DigestCheck(self.digest)
        with self.opened() as file:
            while chunk := file.read(CHUNK):
                check.update(chunk)
                yield chunk
        check.finish("it was changed while it was being saved")


class DigestCheck:
    """Checks the digest of bytes in passing."""

    def __init__(self, digest: str) -> None:
        self._wanted, self._hash = digest, hashlib.sha256()
        self.update = self._hash.update

    def finish(self, why: str) -> None:
        """Raise ArtifactDigestMismatch if the digest differs from the expected one."""
        found = self._hash.hexdigest()
        if found != self._wanted:
            raise ArtifactDigestMismatch(f"the bytes have sha256:{found}, not sha256:{self._wanted}: {why}")


@asynccontextmanager
async def content_of(data: Data) -> AsyncIterator[Content]:
    """Return the content of `data`, with its digest. Raises OSError, and the stream's own errors."""
    if isinstance(data, bytes | bytearray | memoryview):
        whole = bytes(data)
        yield await asyncio.to_thread(_measured, lambda: io.BytesIO(whole))
    elif isinstance(data, os.PathLike):
        path = Path(data)
        yield await asyncio.to_thread(_measured, lambda: path.open("rb"))
    elif isinstance(data, AsyncIterable):
        with tempfile.TemporaryFile() as spool:
            async for chunk in data:
                await asyncio.to_thread(spool.write, chunk)
            yield await asyncio.to_thread(_measured, lambda: _rewound(spool))
    else:
        raise TypeError(f"a {type(data).__name__} cannot be saved: give bytes, a Path or an async iterator")


def _rewound(file: BinaryIO) -> AbstractContextManager[BinaryIO]:
    file.seek(0)
    return nullcontext(file)


def _measured(opened: Callable[[], AbstractContextManager[BinaryIO]]) -> Content:
    found, size = hashlib.sha256(), 0
    with opened() as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
            size += len(chunk)
    return Content(found.hexdigest(), size, opened)


# --- a folder --------------------------------------------------------------------------------------

INCOMING = "incoming"
LEFT_S = 86_400.0
"""Age after which a file in `incoming` must be from a killed process."""


class Folder:
    """Objects as files below `root`, for one machine or several that share a disk.

    The first save creates the folder, which only its owner may read. An object is written to `incoming`,
    synced and renamed, so it is there completely or not at all. A killed process leaves a file in `incoming`;
    later saves remove files too old to be still in use.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def __str__(self) -> str:
        return f"the folder {self.root}"

    async def put(self, key: str, content: Content) -> None:
        """Store an object whole. Raises ArtifactDenied, StoreUnusable, ArtifactDigestMismatch."""
        await asyncio.to_thread(self._put, key, content)

    async def replace(self, key: str, data: bytes) -> None:
        """Store a small object whole, in place of an older one. Raises ArtifactDenied, StoreUnusable."""
        await asyncio.to_thread(self._write, key, iter((data,)))

    def _put(self, key: str, content: Content) -> None:
        with self._named("write"):
            place = self.root / key
            if place.is_file() and place.stat().st_size == content.size:
                return
        self._write(key, content.chunks())

    def _write(self, key: str, chunks: Iterator[bytes]) -> None:
        with self._named("write"):
            place, incoming = self.root / key, self.root / INCOMING
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.parent.mkdir(exist_ok=True)
            incoming.mkdir(exist_ok=True)
            self._sweep(incoming)
            own = incoming / secrets.token_hex(8)
        try:
            with self._named("write"), own.open("xb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            with self._named("write"):
                own.replace(place)
                _sync(place.parent)
        finally:
            own.unlink(missing_ok=True)

    def _sweep(self, incoming: Path) -> None:
        for file in incoming.iterdir():
            try:
                if time.time() - file.stat().st_mtime > LEFT_S:
                    file.unlink()
            except FileNotFoundError:
                continue  # another process was first

    async def chunks(self, key: str) -> AsyncGenerator[bytes, None]:
        """Yield an object's bytes. Raises ArtifactMissing, ArtifactDenied, StoreUnusable."""
        with self._named("read", key):
            # A link in the store would lead out of it.
            handle = await asyncio.to_thread(os.open, self.root / key, os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(handle, "rb") as file:
                while chunk := await asyncio.to_thread(file.read, CHUNK):
                    yield chunk

    async def probe(self) -> None:
        """Look if objects can be saved here. Raises as `put`."""
        with self._named("write"):
            found = next(each for each in (self.root, *self.root.parents) if each.exists())
            if not found.is_dir():
                raise NotADirectoryError
            if not os.access(found, os.W_OK | os.X_OK):
                raise PermissionError

    @contextmanager
    def _named(self, verb: str, key: str = "") -> Iterator[None]:
        """Let an error of the file system name the folder, and what to do."""
        try:
            yield
        except FileNotFoundError as lost:
            if verb == "write":
                raise StoreUnusable(f"{self} was changed under a save: {lost.strerror}") from None
            so = "a folder serves one machine, or those that share its disk: see [artifacts] in mesh.toml"
            raise ArtifactMissing(f"{self} holds no {key}; {so}") from None
        except PermissionError:
            raise ArtifactDenied(f"this process may not {verb} {self}; give its user the right") from None
        except OSError as wrong:
            raise StoreUnusable(f"{self} cannot be used: {wrong.strerror or type(wrong).__name__}") from None


def _sync(folder: Path) -> None:
    """Let a rename outlast a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- the store -------------------------------------------------------------------------------------

SCHEME = "mesh-artifact"
LARGEST_LOAD = 64 << 20
"""Default limit of bytes that `load` reads into memory."""
_ALGORITHM = "sha256"
_URI = re.compile(rf"{SCHEME}:(?P<key>{_ALGORITHM}/(?P<digest>[0-9a-f]{{64}}))")


class Objects(Protocol):
    """The port for storing objects. Each is written once, completely; its key is its digest."""

    async def put(self, key: str, content: Content) -> None:
        """Store a complete object, unless it exists."""
        ...

    def chunks(self, key: str) -> AsyncGenerator[bytes, None]:
        """Yield an object's bytes, unchecked."""
        ...

    async def probe(self) -> None:
        """Raise the error that a save or a load would raise. Writes nothing."""
        ...


class ArtifactStore:
    """The artifacts of one store. Its errors are `ArtifactError`s."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    @classmethod
    def at(cls, where: str) -> Self:
        """Return the store at a URL (`s3://…`, `gs://…`, `az://…`) or at a folder's path.

        Raises StoreExtraMissing, StoreUnusable.
        """
        if "://" not in where:
            return cls(Folder(Path(where)))
        from mesh.artifacts.bucket import Bucket

        return cls(Bucket(where))

    @classmethod
    def from_env(cls) -> Self:
        """Return the store that a command finds here: from MESH_ARTIFACTS, `mesh dev` or `mesh.toml`.

        Raises SettingsInvalid, StoreExtraMissing, StoreUnusable.
        """
        from mesh.settings import Sources

        return cls.at(Sources().artifacts)

    async def save(
        self, name: str, data: Data, *, media_type: str = "", labels: Sequence[str] = ()
    ) -> Artifact:
        """Save bytes, a file or a stream, and return the reference to pass on. Equal bytes are stored once.

        Args:
            name: the name by which readers ask for it; 1 to 128 characters.
            labels: what an agent must be cleared for to see the reference. The store itself ignores labels.
        """
        async with content_of(data) as content:
            key = f"{_ALGORITHM}/{content.digest}"
            await self.objects.put(key, content)
        return Artifact(
            name=name,
            uri=f"{SCHEME}:{key}",
            media_type=media_type,
            digest=f"{_ALGORITHM}:{content.digest}",
            size=content.size,
            labels=tuple(labels),
        )

    async def load(self, artifact: Artifact, *, max_bytes: int = LARGEST_LOAD) -> bytes:
        """Return an artifact's bytes after checking their digest. For large ones, use `load_to`."""
        found = bytearray()
        async with aclosing(self._checked(artifact)) as chunks:
            async for chunk in chunks:
                found += chunk
                if len(found) > max_bytes:
                    told = f"{artifact.name!r} has more than {max_bytes} bytes"
                    raise ArtifactTooLarge(f"{told}: take load_to, which holds little of it at once")
        return bytes(found)

    async def load_to(self, artifact: Artifact, path: str | os.PathLike[str]) -> Path:
        """Write an artifact's bytes to a file and return its path. The file appears once they are checked.

        Raises OSError for a path that cannot be written.
        """
        target = Path(path)
        made = functools.partial(tempfile.mkstemp, dir=target.parent, prefix=f".{target.name}.")
        handle, own = await asyncio.to_thread(made)
        try:
            with os.fdopen(handle, "wb") as file:
                async with aclosing(self._checked(artifact)) as chunks:
                    async for chunk in chunks:
                        await asyncio.to_thread(file.write, chunk)
            await asyncio.to_thread(os.replace, own, target)
        except BaseException:
            os.unlink(own)
            raise
        return target

    async def _checked(self, artifact: Artifact) -> AsyncGenerator[bytes, None]:
        """Yield an object's bytes, which are verified only once this ends without an error."""
        named = _URI.fullmatch(artifact.uri)
        if named is None:
            so = f"only {SCHEME}:{_ALGORITHM}/… is read; fetch anything else with a tool of your own"
            raise ArtifactForeign(f"{artifact.name!r} lies at {artifact.uri[:200]!r}: {so}")
        if artifact.digest not in ("", f"{_ALGORITHM}:{named['digest']}"):
            two = f"{artifact.name!r} names {artifact.digest[:80]} and its URI {_ALGORITHM}:{named['digest']}"
            raise ArtifactDigestMismatch(f"{two}: one of them was changed on the way")
        check = DigestCheck(named["digest"])
        async with aclosing(self.objects.chunks(named["key"])) as chunks:
            async for chunk in chunks:
                check.update(chunk)
                yield chunk
        check.finish(f"the object in {self.objects} was changed or cut; remove it and save it again")


@functools.lru_cache(16)
def store_at(where: str) -> ArtifactStore:
    """Return the store at `where`; cached, since it holds connections."""
    return ArtifactStore.at(where)
