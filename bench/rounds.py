"""Mesh, ring and LangGraph in turns: a round of each, so that all meet the machine in one mood."""

import asyncio
import contextlib
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.chain import DRIVER, chain, sizes
from bench.crew import Member
from bench.figures import Figure, Target, Use, percentile, ratio, spread
from bench.load import Done, Task
from bench.machine import Usage, usage
from bench.peer import peer
from bench.place import place
from bench.ring import ring

SERVER = "nats-server"
MANY = 64


class Plan(NamedTuple):
    """How much is measured."""

    rounds: int
    alone: int
    """Requests a round, one at a time."""
    crowded: int
    """Requests a round, `MANY` at a time."""
    workers: int = os.cpu_count() or 1
    """Processes of LangGraph's."""


class Goal(NamedTuple):
    """What we aim at, as ratios."""

    latency: float
    """p50 of a request by itself, to the ring's: at most."""
    rate: float
    """Requests a second with many under way, to the ring's: at least."""


class PerRequest(NamedTuple):
    """What one process used."""

    cpu_ms: float
    wakeups: float


class Side:
    """Mesh, ring or LangGraph, and what its rounds came to.

    Args:
        pids: its processes, by name.
        drivers: those that are told how many requests to send; many at a time are shared out among them.
    """

    def __init__(self, name: str, pids: dict[str, int], drivers: Sequence[Member]) -> None:
        self.name = name
        self._pids, self._drivers = pids, drivers
        self.p50_ms: list[float] = []
        self.p99_ms: list[float] = []
        self.per_s: list[float] = []
        self.use: list[dict[str, PerRequest]] = []
        """Per request with many under way, by member."""

    async def warm(self, requests: int) -> None:
        await self._drive(Task(requests, MANY))

    async def measure_alone(self, requests: int) -> None:
        done = msgspec.convert(await self._drivers[0].ask(Task(requests, 1)), Done)
        self.p50_ms.append(percentile(done.took_ms, 0.5))
        self.p99_ms.append(percentile(done.took_ms, 0.99))

    async def measure_crowded(self, requests: int) -> None:
        before = {name: usage(pid) for name, pid in self._pids.items()}
        done = await self._drive(Task(requests, MANY))
        sent = len(done.took_ms)
        self.per_s.append(done.per_s)
        self.use.append(
            {name: _each(usage(pid).since(before[name]), sent) for name, pid in self._pids.items()}
        )

    async def _drive(self, task: Task) -> Done:
        """Share a task out among the drivers; return what they did together."""
        part = Task(*(-(-number // len(self._drivers)) for number in (task.requests, task.concurrency)))
        said = await asyncio.gather(*(driver.ask(part) for driver in self._drivers))
        done = [msgspec.convert(each, Done) for each in said]
        took_ms = [one for each in done for one in each.took_ms]
        return Done(max(each.elapsed_s for each in done), took_ms)

    def used(self) -> list[Use]:
        """Return what each process used per request, agents together."""
        groups: dict[str, list[str]] = {}
        for name in self._pids:
            groups.setdefault(_group(name), []).append(name)
        return [
            Use(
                self.name,
                group,
                statistics.median(sum(used[name].cpu_ms for name in names) for used in self.use),
                statistics.median(sum(used[name].wakeups for name in names) for used in self.use),
            )
            for group, names in groups.items()
        ]


def _group(member: str) -> str:
    if len(member) == 1:
        return "agents (5)"
    return "langgraph" if member.startswith("langgraph") else member


def _each(used: Usage, requests: int) -> PerRequest:
    return PerRequest(used.cpu_s * 1e3 / requests, used.wakeups / requests)


async def compare(
    directory: Path, plan: Plan, goal: Goal, *, sync_always: bool
) -> tuple[list[Figure], list[Use], str]:
    """Measure mesh, ring and LangGraph in turns; return figures, use, and a sentence about the load."""
    async with contextlib.AsyncExitStack() as stack:
        places = [
            await stack.enter_async_context(place(directory / name, sync_always=sync_always))
            for name in ("mesh", "ring")
        ]
        mesh_crew = await stack.enter_async_context(chain(places[0], directory / "mesh"))
        sent = await sizes(places[0], mesh_crew.members[DRIVER])
        ring_crew = await stack.enter_async_context(ring(places[1], directory / "ring", sent))
        mesh, yardstick = (
            Side(name, {SERVER: at.server.pid, **_pids(crew.members)}, [crew.members[DRIVER]])
            for name, at, crew in (("mesh", places[0], mesh_crew), ("ring", places[1], ring_crew))
        )
        workers = await stack.enter_async_context(
            peer(directory / "langgraph", workers=plan.workers, sync_always=sync_always)
        )
        other = Side("LangGraph", _pids(workers.members), list(workers.members.values()))
        sides = (mesh, yardstick, other)
        for side in sides:
            await side.warm(plan.crowded)
        for _ in range(plan.rounds):
            for side in sides:
                await side.measure_alone(plan.alone)
            for side in sides:
                await side.measure_crowded(plan.crowded)
    sync = "fsync always" if sync_always else "no fsync"
    alone, crowded = f"{sync}: p50 of one request alone", f"{sync}: requests a second, {MANY} at a time"
    figures = [
        _compared(alone, "ms", mesh.p50_ms, yardstick.p50_ms, Target("at most", goal.latency)),
        _compared(f"{sync}: p99 of one request alone", "ms", mesh.p99_ms, yardstick.p99_ms, None),
        _compared(crowded, "1/s", mesh.per_s, yardstick.per_s, Target("at least", goal.rate)),
        _compared(f"{alone}, beside LangGraph", "ms", mesh.p50_ms, other.p50_ms, None),
        _compared(f"{crowded}, beside LangGraph", "1/s", mesh.per_s, other.per_s, None),
    ]
    note = (
        f"{sync}: {sent.publishes} durable publishes a request in the ring, {sent.publishes - sent.asked} in "
        f"the mesh, whose guard was asked {sent.asked} proposals; bytes of proposals "
        f"{_listed(sent.proposals.values())}, of events {_listed(sent.events.values())}"
    )
    return figures, [use for side in sides for use in side.used()], note


def _pids(members: Mapping[str, Member]) -> dict[str, int]:
    return {name: member.pid for name, member in members.items()}


def _compared(name: str, unit: str, ours: list[float], theirs: list[float], target: Target | None) -> Figure:
    return Figure(name, unit, spread(ours), spread(theirs), ratio(ours, theirs), target)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)
