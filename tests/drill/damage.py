"""What a bad disk does to a server's store while the server is down."""

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

FLIPS = 3
"""Bytes that change in a block."""


def truncate(store: Path, rng: random.Random) -> str:
    """Cut a block of messages in half."""
    block = _block(store, rng)
    size = block.stat().st_size
    with block.open("r+b") as file:
        file.truncate(size // 2)
    return f"{_named(store, block)}: {size // 2} of {size} bytes left"


def flip(store: Path, rng: random.Random) -> str:
    """Change a few bytes in the middle of a block of messages."""
    block = _block(store, rng)
    size = block.stat().st_size
    places = sorted(rng.sample(range(size), min(FLIPS, size)))
    with block.open("r+b") as file:
        for place in places:
            file.seek(place)
            [byte] = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ 1 << rng.randrange(8)]))
    return f"{_named(store, block)}: bits flipped at {', '.join(map(str, places))} of {size}"


def lose_stream(store: Path, rng: random.Random) -> str:
    """Delete the files of one stream."""
    stream = _block(store, rng).parent.parent
    shutil.rmtree(stream)
    return f"{_named(store, stream)}: deleted"


def lose_raft(store: Path, rng: random.Random) -> str:
    """Delete what the server has written down of every election and of what it was to apply."""
    [groups] = store.glob("jetstream/*/_js_")
    count = len(list(groups.iterdir()))
    shutil.rmtree(groups)
    return f"{_named(store, groups)}: {count} groups deleted"


DAMAGES: Mapping[str, Callable[[Path, random.Random], str]] = {
    "truncated": truncate,
    "flipped": flip,
    "stream-lost": lose_stream,
    "raft-lost": lose_raft,
}
"""What is done to a store; each says in a line what it did."""


def empty(store: Path) -> None:
    """Throw a whole store away."""
    shutil.rmtree(store)


def _block(store: Path, rng: random.Random) -> Path:
    """Return a block that has messages: every second time the log's, which promises the most."""
    found = sorted(block for block in store.glob("jetstream/*/streams/*/msgs/*.blk") if block.stat().st_size)
    if rng.random() < 0.5:
        found = [block for block in found if block.parent.parent.name == "LOG"] or found
    return rng.choice(found)


def _named(store: Path, path: Path) -> str:
    return str(path.relative_to(store / "jetstream"))
