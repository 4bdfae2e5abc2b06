"""Backup and restore: seconds for a GiB of backup, beside nats-py that only reads the same log.

The log is made as for `fold`. A backup reads all streams and writes files with digests; a restore checks the
digests, folds the log, and stores everything on a new server. nats-py takes the log from an ordered consumer
and drops it. All three are divided by the bytes of the same backup, and lie in the same round.
"""

import asyncio
import itertools
import shutil
import time
from pathlib import Path

import nats

from bench.figures import Figure, Target, ratio, spread
from bench.place import FLEET, Place, place
from bench.stories import fill, history
from mesh.bus.connection import Bus
from mesh.bus.credentials import read_key, seed_file
from mesh.bus.roles import ADMIN, inbox_prefix
from mesh.fleet.setup import apply
from mesh.ops.backup import backup
from mesh.ops.restore import restore
from protocol.wire import subjects

SECONDS_A_GIB = Target("at most", 60.0)
_GIB = 1 << 30
_CHUNK = 20_000
_PATIENCE_S = 60.0


async def backups(directory: Path, *, events: int, rounds: int) -> list[Figure]:
    """Measure with a log of so many events."""
    made, read, restored = list[float](), list[float](), list[float]()
    async with (
        place(directory / "from", sync_always=False) as at,
        await at.connect_as(ADMIN) as admin,
    ):
        await apply(admin, FLEET)
        await _fill(admin, events)
        for number in range(rounds):
            folder = directory / f"backup{number}"
            started = time.perf_counter()
            manifest = await backup(admin, folder)
            made.append((time.perf_counter() - started) * _GIB / manifest.bytes)
            read.append(await _read(at, manifest.through) * _GIB / manifest.bytes)
            restored.append(await _restore(at, directory / f"to{number}", folder) * _GIB / manifest.bytes)
            await asyncio.to_thread(shutil.rmtree, folder)
    raw = spread(read)
    return [
        *(
            Figure(f"{name}, {events:,} events: s a GiB", "s", spread(took), target=SECONDS_A_GIB)
            for name, took in (("backup", made), ("restore", restored))
        ),
        *(
            Figure(
                f"{name} beside nats-py that reads the log: s a GiB",
                "s",
                spread(took),
                raw,
                ratio(took, read),
            )
            for name, took in (("backup", made), ("restore", restored))
        ),
    ]


async def _fill(admin: Bus, events: int) -> None:
    story, already = history(events), 0
    while chunk := list(itertools.islice(story, _CHUNK)):
        await fill(admin, chunk, already)
        already += len(chunk)


async def _read(at: Place, events: int) -> float:
    """Return the seconds that nats-py takes to read the log."""
    client = await nats.connect(
        at.url, nkeys_seed_str=read_key(seed_file(at.keys, ADMIN)).seed, inbox_prefix=inbox_prefix(ADMIN)
    )
    try:
        started = time.perf_counter()
        reading = await client.jetstream().subscribe(subjects.EVENTS, stream="LOG", ordered_consumer=True)
        for _ in range(events):
            await reading.next_msg(timeout=_PATIENCE_S)
        return time.perf_counter() - started
    finally:
        await client.close()


async def _restore(like: Place, directory: Path, folder: Path) -> float:
    """Return the seconds that a restore takes into a new server, which is thrown away."""
    await asyncio.to_thread(shutil.copytree, like.keys, directory / like.keys.name)
    async with place(directory, sync_always=False) as at, await at.connect_as(ADMIN) as admin:
        started = time.perf_counter()
        await restore(admin, folder)
        took = time.perf_counter() - started
    await asyncio.to_thread(shutil.rmtree, directory)
    return took
