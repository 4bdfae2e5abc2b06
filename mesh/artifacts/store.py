"""The store of a fleet: artifacts saved under their digest, and read back only if the digest matches.

A URI is `mesh-artifact:sha256/<64 hex digits>`. It names no folder and no bucket, so it comes to nothing but
an object of the configured store, and it outlives a move of that store.
"""

import asyncio
import functools
import os
import re
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Protocol, Self

from mesh.artifacts.content import Content, Data, DigestCheck, content_of
from mesh.artifacts.folder import Folder
from mesh.errors import ArtifactDigestMismatch, ArtifactForeign, ArtifactTooLarge
from protocol.wire.handoff import Artifact

SCHEME = "mesh-artifact"
LARGEST_LOAD = 64 << 20
"""Bytes that `load` takes into memory unless the caller says otherwise."""
_ALGORITHM = "sha256"
_URI = re.compile(rf"{SCHEME}:(?P<key>{_ALGORITHM}/(?P<digest>[0-9a-f]{{64}}))")


class Objects(Protocol):
    """Where objects lie. Each is written once and whole; its key is its digest."""

    async def put(self, key: str, content: Content) -> None:
        """Store an object whole, unless it is there."""
        ...

    def chunks(self, key: str) -> AsyncGenerator[bytes, None]:
        """Yield an object's bytes, unchecked."""
        ...

    async def probe(self) -> None:
        """Raise the error that a save or a load would meet; it writes nothing."""
        ...


class ArtifactStore:
    """Artifacts of one store. What it raises is an `ArtifactError`."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    @classmethod
    def at(cls, where: str) -> Self:
        """Return the store at a URL (`s3://…`, `gs://…`, `az://…`) or in a folder, by its path.

        Raises StoreExtraMissing, StoreUnusable.
        """
        if "://" not in where:
            return cls(Folder(Path(where)))
        from mesh.artifacts.bucket import Bucket

        return cls(Bucket(where))

    @classmethod
    def from_env(cls) -> Self:
        """Return the store that a command finds here: of MESH_ARTIFACTS, `mesh dev`, or `mesh.toml`.

        Raises SettingsInvalid, StoreExtraMissing, StoreUnusable.
        """
        from mesh.settings import Sources

        return cls.at(Sources().artifacts)

    async def save(
        self, name: str, data: Data, *, media_type: str = "", labels: Sequence[str] = ()
    ) -> Artifact:
        """Save bytes, a file or a stream, and return the reference to hand on. Equal bytes are one object.

        Args:
            name: by which readers ask for it; 1 to 128 characters.
            labels: what an agent must be cleared for to be shown the reference. The store knows no labels.
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
        """Return an artifact's bytes, whose digest was checked. Larger ones go to a file: `load_to`."""
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
        """Yield an object's bytes; they count only once this has ended without an error."""
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
    """Return the store at `where`; one for each, since it holds connections."""
    return ArtifactStore.at(where)
