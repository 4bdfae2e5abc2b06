"""The command: fetch the peers, or measure them beside the mesh, in turns.

Both sides sync what they acknowledge. A row has the medians of both, and the ratio of the mesh's figure to
the peer's, round by round: below 1 the mesh is quicker or cheaper, for requests a second above 1.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.chain import DRIVER, chain
from bench.peers.faststream import faststream_side
from bench.peers.place import Fetched, NotFetched, fetched, install
from bench.peers.restate import restate_side
from bench.place import place
from bench.rounds import MANY, SERVER, Side
from mesh.service.logs import configure_logging

PEERS = ("restate", "faststream")


def main(argv: Sequence[str]) -> int:
    """Fetch or measure; return 0, or 2 where the peers are not here."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--install", action="store_true", help="fetch the peers by pip and npm, then stop")
    parser.add_argument("--only", choices=PEERS, action="append", help="beside this one; may be repeated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--requests", type=int, default=600, help="a round, 64 at a time; a third of it alone"
    )
    told = parser.parse_args(argv)
    if told.install:
        install()
        return 0
    try:
        here = fetched()
    except NotFetched as missing:
        parser.error(str(missing))
    configure_logging("json", "error")
    with tempfile.TemporaryDirectory(prefix="mesh-peers-") as made:
        lines = asyncio.run(measure(Path(made), here, told.only or PEERS, told.rounds, told.requests))
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


async def measure(
    directory: Path, here: Fetched, peers: Sequence[str], rounds: int, requests: int
) -> list[str]:
    """Return a table of each figure of each peer beside the mesh's."""
    async with contextlib.AsyncExitStack() as stack:
        at = await stack.enter_async_context(place(directory / "mesh", sync_always=True))
        crew = await stack.enter_async_context(chain(at, directory / "mesh"))
        pids = {SERVER: at.server.pid, **{name: each.pid for name, each in crew.members.items()}}
        mesh = Side("mesh", pids, [crew.members[DRIVER]])
        others = []
        if "restate" in peers:
            others.append(await stack.enter_async_context(restate_side(directory / "restate", here)))
        if "faststream" in peers:
            side = faststream_side(directory / "faststream", here, sync_always=True)
            others.append(await stack.enter_async_context(side))
        for each in (mesh, *others):
            await each.warm(requests)
        for _ in range(rounds):
            for each in (mesh, *others):
                await each.measure_alone(requests // 3)
            for each in (mesh, *others):
                await each.measure_crowded(requests)
    return [line for other in others for line in _table(mesh, other)]


def _table(mesh: Side, other: Side) -> list[str]:
    rows = {
        "p50 alone, ms": (mesh.p50_ms, other.p50_ms),
        f"requests/s, {MANY} at a time": (mesh.per_s, other.per_s),
        "CPU a request, ms": (_cpu(mesh), _cpu(other)),
    }
    head = f"{'':28}{'mesh':>10}{other.name:>12}   mesh / {other.name} (min-max)"
    return [head, *(_row(name, *both) for name, both in rows.items()), ""]


def _row(name: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    ratios = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    found = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    return f"{name:28}{statistics.median(ours):>10.2f}{statistics.median(theirs):>12.2f}   {found}"


def _cpu(side: Side) -> list[float]:
    return [sum(one.cpu_ms for one in used.values()) for used in side.use]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
