"""A folder as store: for one machine, or for several that share a disk.

An object is written beside its place, synced, and renamed: either all of it is there, or nothing. A process
that is killed leaves a file in `incoming`; the next save takes away those that nobody can still be writing.
"""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path

from mesh.artifacts.content import CHUNK, Content
from mesh.errors import ArtifactDenied, ArtifactMissing, StoreUnusable

INCOMING = "incoming"
LEFT_S = 86_400.0
"""How old a file in `incoming` is that a killed process left."""


class Folder:
    """Objects as files below `root`, which the first save makes: its owner alone may read it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __str__(self) -> str:
        return f"the folder {self.root}"

    async def put(self, key: str, content: Content) -> None:
        """Store an object whole. Raises ArtifactDenied, StoreUnusable, ArtifactDigestMismatch."""
        await asyncio.to_thread(self._put, key, content)

    def _put(self, key: str, content: Content) -> None:
        with self._named("write"):
            place, incoming = self.root / key, self.root / INCOMING
            if place.is_file() and place.stat().st_size == content.size:
                return
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.parent.mkdir(exist_ok=True)
            incoming.mkdir(exist_ok=True)
            self._sweep(incoming)
            own = incoming / secrets.token_hex(8)
        try:
            with self._named("write"), own.open("xb") as file:
                for chunk in content.chunks():
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
