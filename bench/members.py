"""What an account of its own for every member costs the server: configuration, start, memory, reload.

One server reads what `mesh setup` generates for a fleet of so many agents. The reload adds one agent.
What a hop between accounts costs is in every figure of the chain.
"""

import asyncio
import signal
import time
from asyncio.subprocess import create_subprocess_exec
from pathlib import Path

from bench.figures import Figure, spread
from bench.machine import memory_mib, usage
from mesh.bus.credentials import new_key
from mesh.bus.roles import accounts_config, names, server_config
from mesh.local.server import server_binary
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.ids import AgentName

_STARTED = "Server is ready"
_RELOADED = "Reloaded server configuration"
_LOOK_S = 0.005
_PATIENCE_S = 300.0
_CLIENTS = 20


async def members(directory: Path, *, sizes: list[int], rounds: int) -> list[Figure]:
    """Measure with each number of agents."""
    figures: list[Figure] = []
    for agents in sizes:
        texts = await asyncio.to_thread(_configurations, agents, directory)
        took = [await _once(directory / f"{agents}-{number}", *texts) for number in range(rounds)]
        of = f"{agents:,} agents"
        figures.append(Figure(f"configuration, {of}", "KB", spread([len(texts[0]) / 1000])))
        for at, (what, unit) in enumerate(_MEASURED):
            figures.append(Figure(f"{what}, {of}", unit, spread([each[at] for each in took])))
    return figures


_MEASURED = (
    ("start of the server", "s"),
    ("CPU of the start", "s"),
    ("memory after the start", "MB"),
    ("reload with one agent more", "s"),
    ("CPU of the reload", "s"),
    ("memory after the reload", "MB"),
)


def _configurations(agents: int, directory: Path) -> tuple[str, str]:
    """Return a server's configuration for so many agents, and for one more."""
    fleets = [_fleet(agents), _fleet(agents + 1)]
    keys = {name: new_key().public for name in names(fleets[1])}
    store = directory / f"store-{agents}"
    one, more = (
        server_config(accounts_config(fleet, keys), store=store, sync_always=False) for fleet in fleets
    )
    return one, more


def _fleet(agents: int) -> Fleet:
    named = [AgentName(f"agent-{number}") for number in range(agents)]
    clients = tuple(AgentName(f"client-{number}") for number in range(_CLIENTS))
    entries: dict[str, AgentEntry] = {name: AgentEntry(name=name) for name in named}
    return Fleet(name="bench", entry=named[0], agents=entries, clients=clients)


async def _once(directory: Path, configuration: str, more: str) -> tuple[float, ...]:
    await asyncio.to_thread(directory.mkdir, parents=True)
    path, log = directory / "nats.conf", directory / "server.log"
    await asyncio.to_thread(path.write_text, configuration)
    began = time.perf_counter()
    server = await create_subprocess_exec(server_binary(), "-c", path, "-l", log)
    try:
        await _said(log, _STARTED)
        started_s, started_cpu = time.perf_counter() - began, usage(server.pid).cpu_s
        started_mb = memory_mib(server.pid, "VmRSS")
        await asyncio.to_thread(path.write_text, more)
        began = time.perf_counter()
        server.send_signal(signal.SIGHUP)
        await _said(log, _RELOADED)
        reloaded_s, cpu = time.perf_counter() - began, usage(server.pid).cpu_s - started_cpu
        return started_s, started_cpu, started_mb, reloaded_s, cpu, memory_mib(server.pid, "VmRSS")
    finally:
        server.kill()
        await server.wait()


async def _said(log: Path, line: str) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while not await asyncio.to_thread(_is_in, log, line):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(_LOOK_S)


def _is_in(log: Path, line: str) -> bool:
    return log.exists() and line in log.read_text()
