"""Mesh and ring in turns: one round of one, one of the other, so that both meet the machine in one mood."""

import contextlib
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.chain import DRIVER, chain, sizes
from bench.crew import Crew
from bench.figures import Figure, Target, Use, percentile, ratio, spread
from bench.load import Done, Task
from bench.place import Place, place
from bench.ring import ring
from bench.usage import Usage, usage

SERVER = "nats-server"
MANY = 64


class Plan(NamedTuple):
    """How much is measured."""

    rounds: int
    alone: int
    """Requests a round, one at a time."""
    crowded: int
    """Requests a round, `MANY` at a time."""


class Goal(NamedTuple):
    """What we aim at, as ratios to the ring."""

    latency: float
    """p50 of a request by itself: at most."""
    rate: float
    """Requests a second with many under way: at least."""


class PerRequest(NamedTuple):
    """What one process used."""

    cpu_ms: float
    wakeups: float


class Side:
    """Mesh or ring, and what its rounds came to."""

    def __init__(self, name: str, place: Place, crew: Crew) -> None:
        self.name = name
        self._driver = crew.members[DRIVER]
        self._pids = {SERVER: place.server.pid} | {name: one.pid for name, one in crew.members.items()}
        self.p50_ms: list[float] = []
        self.p99_ms: list[float] = []
        self.per_s: list[float] = []
        self.use: list[dict[str, PerRequest]] = []
        """Per request with many under way, by member."""

    async def warm(self, requests: int) -> None:
        await self._drive(Task(requests, MANY))

    async def measure_alone(self, requests: int) -> None:
        done = await self._drive(Task(requests, 1))
        self.p50_ms.append(percentile(done.took_ms, 0.5))
        self.p99_ms.append(percentile(done.took_ms, 0.99))

    async def measure_crowded(self, requests: int) -> None:
        before = {name: usage(pid) for name, pid in self._pids.items()}
        done = await self._drive(Task(requests, MANY))
        self.per_s.append(done.per_s)
        self.use.append(
            {name: _each(usage(pid).since(before[name]), requests) for name, pid in self._pids.items()}
        )

    async def _drive(self, task: Task) -> Done:
        return msgspec.convert(await self._driver.ask(task), Done)

    def used(self) -> list[Use]:
        """Return what each process used per request, agents together."""
        groups: dict[str, list[str]] = {}
        for name in self._pids:
            groups.setdefault(name if len(name) > 1 else "agents (5)", []).append(name)
        return [
            Use(
                self.name,
                group,
                statistics.median(sum(used[name].cpu_ms for name in names) for used in self.use),
                statistics.median(sum(used[name].wakeups for name in names) for used in self.use),
            )
            for group, names in groups.items()
        ]


def _each(used: Usage, requests: int) -> PerRequest:
    return PerRequest(used.cpu_s * 1e3 / requests, used.wakeups / requests)


async def compare(
    directory: Path, plan: Plan, goal: Goal, *, sync_always: bool
) -> tuple[list[Figure], list[Use], str]:
    """Measure mesh and ring in turns; return figures, use, and a sentence about the load."""
    async with contextlib.AsyncExitStack() as stack:
        places = [
            await stack.enter_async_context(place(directory / name, sync_always=sync_always))
            for name in ("mesh", "ring")
        ]
        mesh_crew = await stack.enter_async_context(chain(places[0], directory / "mesh"))
        sent = await sizes(places[0], mesh_crew.members[DRIVER])
        ring_crew = await stack.enter_async_context(ring(places[1], directory / "ring", sent))
        mesh, yardstick = Side("mesh", places[0], mesh_crew), Side("ring", places[1], ring_crew)
        sides = (mesh, yardstick)
        for side in sides:
            await side.warm(plan.crowded)
        for _ in range(plan.rounds):
            for side in sides:
                await side.measure_alone(plan.alone)
            for side in sides:
                await side.measure_crowded(plan.crowded)
        sync = "fsync always" if sync_always else "no fsync"
        figures = [
            _compared(f"{sync}: p50 of one request alone", "ms", mesh.p50_ms, yardstick.p50_ms,
                      Target("at most", goal.latency)),
            _compared(f"{sync}: p99 of one request alone", "ms", mesh.p99_ms, yardstick.p99_ms, None),
            _compared(f"{sync}: requests a second, {MANY} at a time", "1/s", mesh.per_s, yardstick.per_s,
                      Target("at least", goal.rate)),
        ]  # fmt: skip
        note = (
            f"{sync}: {sent.publishes} durable publishes a request, on both sides; bytes of proposals "
            f"{_listed(sent.proposals.values())}, of events {_listed(sent.events.values())}"
        )
        return figures, [*mesh.used(), *yardstick.used()], note


def _compared(name: str, unit: str, ours: list[float], theirs: list[float], target: Target | None) -> Figure:
    return Figure(name, unit, spread(ours), spread(theirs), ratio(ours, theirs), target)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)
