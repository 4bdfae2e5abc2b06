"""What a fleet costs three servers that keep each stream three times, and how long the loss of one is felt.

Each stream and each consumer of such a mesh is a Raft group. Fleets of several sizes are set up on three
servers of this machine. Then nothing happens but a guard's pulls; then the first server is killed.
"""

import asyncio
import contextlib
import json
import os
import statistics
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.crew import Crew
from bench.figures import Figure, spread
from bench.machine import memory_mib, usage
from mesh.bus.connection import Bus, connect
from mesh.bus.event_log import JetStreamLog
from mesh.bus.roles import ADMIN, GUARD
from mesh.bus.streams import consumer_table, stream_table
from mesh.errors import BusError
from mesh.fleet.file import FleetFile, parse_fleet
from mesh.fleet.setup import KEYS, Prepared, apply, prepare
from mesh.local.server import EmbeddedServer, lasting_port

_NODES = ("n1", "n2", "n3")
_PATIENCE_S = 1_800.0
_MEET_S = 60.0
_LOOK_S = 0.25
_MB_A_MIB = 1.048576
_APPENDS = 200


class _Cost(NamedTuple):
    """What one fleet came to. Figures of servers are sums over the three."""

    groups: int
    setup_s: float
    setup_cpu_s: float
    memory_mb: float
    files: int
    rest_percent: float
    append_ms: float
    leaderless_s: float
    back_s: float


_MEASURED = (
    ("Raft groups", ""),
    ("mesh setup", "s"),
    ("CPU of mesh setup's own process", "s"),
    ("memory of three servers", "MB"),
    ("open files of three servers", ""),
    ("CPU of three servers at rest, of one core", "%"),
    ("one append to LOG", "ms"),
    ("until each group has a leader after a kill", "s"),
    ("until the killed server is current again", "s"),
)


async def replicas(directory: Path, *, sizes: list[int], rounds: int, rest_s: float = 20.0) -> list[Figure]:
    """Measure with each number of agents.

    Args:
        rest_s: how long the servers are watched while nothing happens.
    """
    figures: list[Figure] = []
    for agents in sizes:
        costs = [await _once(directory / f"{agents}-{number}", agents, rest_s) for number in range(rounds)]
        for what, values in zip(_MEASURED, zip(*costs, strict=True), strict=True):
            name, unit = what
            figures.append(Figure(f"{name}, {agents:,} agents", unit, spread(values)))
    return figures


async def _once(directory: Path, agents: int, rest_s: float) -> _Cost:
    file = _file(agents)
    prepared = await asyncio.to_thread(prepare, file, directory)
    async with _cluster(prepared, directory) as servers, Crew(directory) as crew:
        first, *others = servers.values()
        url, pids = others[0].url, [each.pid for each in servers.values()]
        async with await connect(url, name=ADMIN, seed=prepared.keys[ADMIN].seed, wait=True) as admin:
            began, cpu = time.perf_counter(), time.process_time()
            await _set_up(admin, file)
            setup_s, setup_cpu_s = time.perf_counter() - began, time.process_time() - cpu
        groups = len(stream_table(file.fleet, file.storage)) + len(
            [*consumer_table(file.fleet, file.storage)]
        )
        await _until_led(servers, groups)
        await crew.start(GUARD, "bench.crew", GUARD, url, str(directory / KEYS), GUARD)
        before = sum(usage(each).cpu_s for each in pids)
        await asyncio.sleep(rest_s)
        at_rest = sum(usage(each).cpu_s for each in pids) - before
        memory = sum(memory_mib(each, "VmRSS") for each in pids) * _MB_A_MIB
        files = sum(map(_open_files, pids))
        async with await connect(url, name=GUARD, seed=prepared.keys[GUARD].seed) as guard:
            append_ms = await _append_ms(guard)
        await first.kill()
        began = time.perf_counter()
        left = {name: each for name, each in servers.items() if each is not first}
        await _until_led(left, groups, without=_NODES[0])
        leaderless_s = time.perf_counter() - began
        began = time.perf_counter()
        await first.start()
        await _until_led(servers, groups, current=True)
        back_s = time.perf_counter() - began
    return _Cost(
        groups,
        setup_s,
        setup_cpu_s,
        memory,
        files,
        100 * at_rest / rest_s,
        append_ms,
        leaderless_s,
        back_s,
    )


def _file(agents: int) -> FleetFile:
    """Return a fleet of so many agents, whose streams together fit a small disk."""
    names = "".join(f"[agents.agent-{number}]\n" for number in range(agents))
    return parse_fleet(
        f"""
        name = "bench"
        entry = "agent-0"
        {names}
        [clients.app]
        [human]
        [log]
        replicas = 3
        max_bytes = {1 << 28}
        [limits]
        mib = 4
        steps_mib = 4
        """
    )


@contextlib.asynccontextmanager
async def _cluster(prepared: Prepared, directory: Path) -> AsyncIterator[dict[str, EmbeddedServer]]:
    ports = [lasting_port() for _ in _NODES]
    routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports)
    servers = {
        name: EmbeddedServer(
            prepared.accounts,
            directory / name,
            sync_always=False,
            name=name,
            extra=f"cluster {{ name: c, listen: 127.0.0.1:{port}, routes: [{routes}] }}\n",
        )
        for name, port in zip(_NODES, ports, strict=True)
    }
    async with contextlib.AsyncExitStack() as stack:
        for each in servers.values():
            stack.push_async_exit(each)
        await asyncio.gather(*(each.start() for each in servers.values()))
        yield servers


async def _set_up(admin: Bus, file: FleetFile) -> None:
    """Set the mesh up; again for a while, as an operator would whose servers have not met yet."""
    give_up_at = time.monotonic() + _MEET_S
    while True:
        try:
            await apply(admin, file)
            return
        except BusError:
            if time.monotonic() > give_up_at:
                raise
        await asyncio.sleep(_LOOK_S)


async def _append_ms(guard: Bus) -> float:
    """Return what one append took (ms, p50), one at a time."""
    log, took = JetStreamLog(guard), []
    for number in range(_APPENDS):
        began = time.perf_counter()
        await log.append("agent-0", f"r{number}", b'{"n":0}', after=0)
        took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took)


async def _until_led(
    servers: Mapping[str, EmbeddedServer], groups: int, *, without: str = "", current: bool = False
) -> None:
    """Wait until each of these servers knows a leader of each group.

    Args:
        without: the server that was killed: no leader any more.
        current: wait until the leaders find every replica up to date, too. Others do not know.
    """
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            seen = [(name, each) for name, server in servers.items() for each in await _groups(server)]
            led = len(seen) == groups * len(servers) and all(
                each.leader not in {"", without} for _, each in seen
            )
            if led and (not current or all(each.is_current for name, each in seen if name == each.leader)):
                return
            await asyncio.sleep(_LOOK_S)


class _Group(NamedTuple):
    leader: str
    is_current: bool


async def _groups(server: EmbeddedServer) -> list[_Group]:
    """Return the Raft groups of streams and consumers that a server has."""
    url = f"{server.monitor_url}/jsz?accounts=true&streams=true&consumers=true"
    told = await asyncio.to_thread(_get, url)
    streams = [each for account in told.get("account_details") or () for each in account["stream_detail"]]
    consumers = [each for stream in streams for each in stream.get("consumer_detail") or ()]
    clusters: list[dict[str, Any]] = [each.get("cluster") or {} for each in (*streams, *consumers)]
    return [
        _Group(each.get("leader", ""), all(one.get("current") for one in each.get("replicas") or ()))
        for each in clusters
    ]


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_PATIENCE_S) as answer:
        return json.load(answer)


def _open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0
