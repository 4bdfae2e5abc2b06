"""Bytes on their way: what is to be saved, with its digest, and what is read, checked against one.

The name of an object is its digest, so it has to be known before the first byte is stored. A file is read
twice. What comes as a stream is written to a temporary file first, which has no name: nothing is left of it
when the process is killed.
"""

import asyncio
import hashlib
import io
import os
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mesh.errors import ArtifactDigestMismatch

Data = bytes | bytearray | memoryview | os.PathLike[str] | AsyncIterable[bytes]
"""What can be saved: bytes, a file, or a stream of bytes. Text is none: encode it, or give its `Path`."""

CHUNK = 1 << 20
"""Bytes that are held at once on the way from or to a file."""


class Content(NamedTuple):
    """Bytes that can be read more than once."""

    digest: str
    """SHA-256, hex."""
    size: int
    """Bytes."""
    opened: Callable[[], AbstractContextManager[BinaryIO]]

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes. Raises ArtifactDigestMismatch at the end if they are others by now."""
        check = DigestCheck(self.digest)
        with self.opened() as file:
            while chunk := file.read(CHUNK):
                check.update(chunk)
                yield chunk
        check.finish("it was changed while it was being saved")


class DigestCheck:
    """The digest of bytes as they pass."""

    def __init__(self, digest: str) -> None:
        self._wanted, self._hash = digest, hashlib.sha256()
        self.update = self._hash.update

    def finish(self, why: str) -> None:
        """Raise ArtifactDigestMismatch if other bytes passed than those that were wanted."""
        found = self._hash.hexdigest()
        if found != self._wanted:
            raise ArtifactDigestMismatch(f"the bytes have sha256:{found}, not sha256:{self._wanted}: {why}")


@asynccontextmanager
async def content_of(data: Data) -> AsyncIterator[Content]:
    """Give the content of `data`, with its digest. Raises OSError, and what a stream raises."""
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
