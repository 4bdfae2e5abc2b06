"""Several guards on one mesh: what a request costs, how many there are a second, and who has how much of it.

The chain of `bench.chain` runs before one guard and before more of them, in turns, on meshes of so many
partitions. On two cores more guards have nothing to give. What counts is that a request costs no more, and
how large the busiest guard's share is: on cores enough, the reciprocal of it is by how much guards scale. A
guard that joins, or is killed or frozen, is so under a light load: four requests at a time, on 16 partitions.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.chain import DRIVER
from bench.crew import Member
from bench.figures import Figure, Target, spread
from bench.load import ANSWER, FACTS, TEXT, Done, Task
from bench.machine import usage
from bench.place import AGENTS, FLEET, Site, site
from mesh.bus.nats_protocol import Incoming
from mesh.fleet.file import GuardSection
from mesh.guard.queues import Beat
from protocol.wire.subjects import GUARD_BEATS

_MANY = 64
_FEW = 4
_PATIENCE_S = 60.0
_LOOK_S = 0.02
_AGAIN = Target("at most", 5000.0)
_COSTS = Target("at most", 1.10)
_RATE = Target("at least", 0.95)
_SHARES = {(4, 64): Target("at most", 30.0), (8, 64): Target("at most", 17.0)}


class Shared(NamedTuple):
    """How much is measured."""

    guards: tuple[int, ...]
    """Numbers of guards, one first: the others are compared with it."""
    partitions: tuple[int, ...]
    requests: int
    rounds: int
    gone_s: float = 8.0
    """How long it is watched what becomes of a guard that is gone: its lease of 3 s, and what comes after."""


class Sample(NamedTuple):
    """What a number of guards came to in one round."""

    per_s: float
    cpu_ms: float
    """Of all processes together, a request."""
    guards_ms: float
    """Of the guards together, a request."""
    busiest: float
    """Part of the guards' CPU that the busiest had, in percent."""


async def guards(directory: Path, amount: Shared) -> list[Figure]:
    """Measure with each number of guards on each number of partitions, and as guards come and go."""
    figures: list[Figure] = []
    for partitions in amount.partitions:
        samples: dict[int, list[Sample]] = {count: [] for count in amount.guards}
        async with _shift(directory / str(partitions), partitions) as shift:
            for _ in range(amount.rounds):
                for count in amount.guards:
                    await shift.man(count)
                    samples[count].append(await shift.measure(amount.requests))
        for count, found in samples.items():
            figures += _figures(count, partitions, found, samples[amount.guards[0]])
    return [*figures, *await _changes(directory / "changes", amount.rounds, amount.gone_s)]


def _figures(count: int, partitions: int, found: list[Sample], alone: list[Sample]) -> list[Figure]:
    of = f"{count} guard{'s' if count > 1 else ''}, {partitions} partition{'s' if partitions > 1 else ''}"
    pairs = list(zip(found, alone, strict=True))
    costs = Figure(
        f"CPU a request, {of}",
        "ms",
        spread([each.cpu_ms for each in found]),
        spread([each.cpu_ms for each in alone]),
        spread([one.cpu_ms / other.cpu_ms for one, other in pairs]),
        _COSTS if count == 4 else None,
    )
    rate = Figure(
        f"requests a second, {of}",
        "1/s",
        spread([each.per_s for each in found]),
        spread([each.per_s for each in alone]),
        spread([one.per_s / other.per_s for one, other in pairs]),
        _RATE if count == 4 else None,
    )
    own = Figure(f"CPU of all guards a request, {of}", "ms", spread([each.guards_ms for each in found]))
    busiest = Figure(
        f"share of the busiest guard, {of}",
        "%",
        spread([each.busiest for each in found]),
        target=_SHARES.get((count, partitions)),
    )
    return [rate, costs, own, busiest]


class _Held:
    """What guards hold, as they say themselves."""

    def __init__(self) -> None:
        self.of: dict[str, frozenset[int]] = {}

    def hear(self, message: Incoming) -> None:
        beat = msgspec.json.decode(message.data, type=Beat)
        self.of[beat.guard.partition("/")[0]] = beat.holds

    async def by(self, names: Sequence[str], partitions: int) -> None:
        """Wait until these guards have an even share each, and all partitions together."""
        least = partitions // len(names)
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                held = [self.of.get(name, frozenset()) for name in names]
                if sum(map(len, held)) == partitions and all(len(each) - least in (0, 1) for each in held):
                    return
                await asyncio.sleep(_LOOK_S)


class Shift:
    """A mesh of so many partitions, with the chain's agents and driver, and guards that come and go."""

    def __init__(self, here: Site, partitions: int) -> None:
        self._here = here
        self._partitions = partitions
        self._held = _Held()
        self._members: list[Member] = []
        self._count = 0

    async def open(self) -> None:
        await self._here.admin.subscribe(GUARD_BEATS, self._held.hear)
        at = self._here.at
        await self._here.crew.start_all("bench.chain", (*AGENTS, DRIVER), at.url, str(at.keys))

    async def man(self, guards: int) -> None:
        """Start or end guards until so many have an even share each."""
        while len(self._members) > guards:
            member = self._members.pop()
            await member.end()
            self._held.of.pop(member.name)
        while len(self._members) < guards:
            self._count += 1
            self._members.append(await self._here.start_guard(f"guard-{self._count}"))
        await self.settled()

    async def settled(self) -> None:
        await self._held.by([each.name for each in self._members], self._partitions)

    async def measure(self, requests: int) -> Sample:
        """Drive so many requests, many at a time."""
        crew = self._here.crew.members
        pids = [crew[name].pid for name in (*AGENTS, DRIVER)] + [self._here.at.server.pid]
        guards = [each.pid for each in self._members]
        await crew[DRIVER].ask(Task(_MANY, _MANY))
        before = {pid: usage(pid).cpu_s for pid in (*pids, *guards)}
        done = msgspec.convert(await crew[DRIVER].ask(Task(requests, _MANY)), Done)
        used = {pid: usage(pid).cpu_s - before[pid] for pid in before}
        own = [used[pid] for pid in guards]
        each_ms = 1e3 / len(done.took_ms)
        return Sample(done.per_s, sum(used.values()) * each_ms, sum(own) * each_ms, 100 * max(own) / sum(own))

    async def longest(self, happens: Callable[[], Awaitable[object]], *, lasts_s: float) -> float:
        """Return what the longest of many requests took (ms) while something happens, and `lasts_s` more."""
        took: list[float] = []
        over = asyncio.Event()

        async def send() -> None:
            while not over.is_set():
                began = time.perf_counter()
                request = await self._here.client.submit(TEXT, facts=FACTS)
                outcome = await self._here.client.wait(request, timeout_s=_PATIENCE_S)
                if outcome.answer != ANSWER:
                    raise RuntimeError(f"{request} {outcome.status}: {outcome.reason}")
                took.append((time.perf_counter() - began) * 1e3)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_FEW):
                tasks.create_task(send())
            await asyncio.sleep(1.0)
            took.clear()
            await happens()
            await asyncio.sleep(lasts_s)
            over.set()
        return max(took)

    async def nothing(self) -> None:
        """What a quiet round is compared with."""

    async def join(self) -> float:
        """Have one guard more; return the seconds until it has its share."""
        began = time.perf_counter()
        await self.man(len(self._members) + 1)
        return time.perf_counter() - began

    async def kill(self) -> None:
        member = self._members.pop()
        os.kill(member.pid, signal.SIGKILL)
        self._held.of.pop(member.name)

    async def freeze(self) -> None:
        os.kill(self._members[-1].pid, signal.SIGSTOP)

    async def thaw(self) -> None:
        os.kill(self._members[-1].pid, signal.SIGCONT)
        await self.settled()


@contextlib.asynccontextmanager
async def _shift(directory: Path, partitions: int) -> AsyncIterator[Shift]:
    fleet = FLEET.model_copy(update={"guard": GuardSection(partitions=partitions)})
    async with site(directory, fleet=fleet) as here:
        shift = Shift(here, partitions)
        await shift.open()
        yield shift


async def _changes(directory: Path, rounds: int, gone_s: float) -> list[Figure]:
    """Return what requests notice as guards come, leave, die and freeze."""
    quiet, joining, shares, leaving, killed, frozen = (list[float]() for _ in range(6))
    async with _shift(directory, 16) as shift:
        for _ in range(rounds):
            await shift.man(2)
            quiet.append(await shift.longest(shift.nothing, lasts_s=3.0))

            async def join() -> None:
                shares.append(await shift.join())

            joining.append(await shift.longest(join, lasts_s=1.0))
            leaving.append(await shift.longest(lambda: shift.man(2), lasts_s=1.0))
            await shift.man(3)
            killed.append(await shift.longest(shift.kill, lasts_s=gone_s))
            await shift.man(3)
            frozen.append(await shift.longest(shift.freeze, lasts_s=gone_s))
            await shift.thaw()
    more = [one - other for one, other in zip(joining, quiet, strict=True)]
    return [
        Figure("a guard joins: until it has its share", "s", spread(shares), target=Target("at most", 10.0)),
        Figure("longest request, nothing happens", "ms", spread(quiet)),
        Figure("longest request while a guard joins", "ms", spread(joining)),
        Figure("what that is more", "ms", spread(more), target=Target("at most", 100.0)),
        Figure("longest request while a guard leaves", "ms", spread(leaving)),
        Figure("longest request, a guard of three killed", "ms", spread(killed), target=_AGAIN),
        Figure("longest request, a guard of three frozen", "ms", spread(frozen)),
    ]
