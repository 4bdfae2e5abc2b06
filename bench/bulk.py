"""Commands for many requests at once: the processor time that each takes for a thousand.

An agent escalates every request, another never comes. The commands of an operator then do to all that wait
what their words say. Each is a process of its own, as a person starts it, with an index of requests that is
up to date. The CPU is the command's own, without server and guard.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from bench.crew import ROOT, run_member, serve_agent
from bench.figures import Figure, Target, spread
from bench.load import TEXT
from bench.place import AGENTS, FLOODED, OPERATOR, Site, site
from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.bus.reader import bounds
from protocol.wire.moves import Move

_AWAY, _ESCALATING = AGENTS[0], AGENTS[1]
_EVENTS_ESCALATED = 2
"""Opened, and escalated."""
_AT_ONCE = 64
_LOOK_S = 0.05
CPU_S = Target("at most", 1.0)


class Given(NamedTuple):
    """A command, and for which requests."""

    words: tuple[str, ...]
    where: str
    more: tuple[str, ...] = ()


COMMANDS = (
    Given(("request", "freeze"), "status=open"),
    Given(("request", "thaw"), "status=frozen"),
    Given(("request", "cancel"), "status=open"),
    Given(("request", "rerun"), "status=cancelled"),
    Given(("human", "resolve"), "status=human", ("--complete", "--answer", "no")),
)
"""In an order in which each finds its requests."""
_LIST = Given(("request", "ls"), "status=open")
"""Brings the index up to date before each: what the command before it did is not the next one's to read."""


async def bulk(directory: Path, *, requests: int, rounds: int) -> list[Figure]:
    """Return what each command takes for so many requests, its start included."""
    cpu: dict[str, list[float]] = {}
    wall: dict[str, list[float]] = {}
    for number in range(rounds):
        async with site(directory / str(number), fleet=FLOODED) as here:
            await here.start_guard()
            await here.start("bench.bulk", _ESCALATING)
            for agent in (_AWAY, _ESCALATING):
                await _submit(here, requests, agent)
            environment = {
                "NATS_URL": here.at.url,
                "MESH_NAME": OPERATOR,
                "MESH_CREDENTIALS": str(here.at.keys / f"{OPERATOR}.nk"),
                "XDG_CACHE_HOME": str(directory / str(number)),
            }
            for given in COMMANDS:
                await asyncio.to_thread(_run, _LIST, 1, environment)
                cpu_s, wall_s = await asyncio.to_thread(_run, given, requests, environment)
                name = " ".join(given.words)
                cpu.setdefault(name, []).append(cpu_s)
                wall.setdefault(name, []).append(wall_s)
    return [
        *(
            Figure(f"{name} --where, {requests:,} requests: CPU", "s", spread(took), target=CPU_S)
            for name, took in cpu.items()
        ),
        *(Figure(f"{name} --where, {requests:,} requests", "s", spread(took)) for name, took in wall.items()),
    ]


async def _submit(here: Site, requests: int, agent: str) -> None:
    """Submit so many to an agent, and wait until they wait: with the agent, or with a person."""
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def one() -> None:
        async with at_once:
            await here.client.submit(TEXT, to=agent)

    _, before = await bounds(here.admin, "LOG")
    await asyncio.gather(*(one() for _ in range(requests)))
    expected = before + requests * (1 if agent == _AWAY else _EVENTS_ESCALATED)
    while (await bounds(here.admin, "LOG"))[1] < expected:  # noqa: ASYNC110 - it lies with the server
        await asyncio.sleep(_LOOK_S)


def _run(given: Given, limit: int, environment: Mapping[str, str]) -> tuple[float, float]:
    """Run a command to its end; return the seconds of CPU and of wall clock that it took."""
    command = [sys.executable, "-m", "mesh", *given.words, "--where", given.where, "--limit", str(limit)]
    command += given.more
    command += [] if given is _LIST else ["--yes"]
    before, began = os.times(), time.perf_counter()
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    took, after = time.perf_counter() - began, os.times()
    if ran.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {ran.returncode}: {ran.stderr[-2000:]}")
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return used, took


async def _escalate(turn: Turn) -> Move:
    return turn.escalate("a person, please")


async def _member(url: str, keys: Path) -> None:
    await serve_agent(url, keys, Agent(name=_ESCALATING, handler=_escalate, concurrency=16))


if __name__ == "__main__":
    run_member(_member(sys.argv[2], Path(sys.argv[3])), level="error")
