"""A process that saves artifacts, for tests that kill it or look at its memory. What it does, it says."""

import asyncio
import contextlib
import hashlib
import io
import resource
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from mesh.artifacts import ArtifactStore
from mesh.artifacts.store import CHUNK, Content

MIB = 1 << 20


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Stuck(io.BytesIO):
    """A file that hands out its first half, says so, and never goes on."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() >= len(self.getvalue()) // 2:
            say("halfway")
            threading.Event().wait()
        return super().read(size)


async def halfway(store: ArtifactStore, mib: int) -> None:
    """Save so much, and get stuck in the middle of what the store is given."""
    whole = bytes(mib * MIB)
    digest = hashlib.sha256(whole).hexdigest()
    content = Content(digest, len(whole), lambda: contextlib.closing(Stuck(whole)))
    await store.objects.put(f"sha256/{digest}", content)


async def stream(mib: int) -> AsyncIterator[bytes]:
    for n in range(mib):
        yield bytes([n % 251]) * CHUNK


def peak() -> int:
    """Return the most memory that this process ever had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


async def measured(store: ArtifactStore, mib: int, folder: Path) -> None:
    """Save a stream and load it to a file; first a small one, so that all is loaded that the work needs."""
    await store.load_to(await store.save("small", stream(1)), folder / "small")
    before = peak()
    big = await store.save("big", stream(mib))
    after_save = peak()
    size = (await store.load_to(big, folder / "big")).stat().st_size
    say(f"grew {after_save - before} {peak() - before} {size} {big.digest}")


if __name__ == "__main__":
    how, where, mib, *rest = sys.argv[1:]
    at = ArtifactStore.at(where)
    asyncio.run(halfway(at, int(mib)) if how == "halfway" else measured(at, int(mib), Path(rest[0])))
