"""Faults: planned by a seed, done to whatever is running then, until as many as were asked for are done.

What is done, to whom, in what order and in which failpoints is drawn and comes out the same for a seed; when
it happens, and what it interrupts, is up to the machine.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from tests.drill.damage import DAMAGES
from tests.drill.failpoints import FAILPOINTS
from tests.drill.processes import NotCurrent, Processes

Sort = Literal[
    "kill",
    "pause",
    "restart",
    "server-kill",
    "server-pause",
    "server-restart",
    "disk-damaged",
    "disk-damaged-raw",
    "partition",
    "failpoint",
]
SORTS: dict[Sort, int] = {
    "failpoint": 12,
    "kill": 5,
    "restart": 3,
    "pause": 2,
    "server-kill": 1,
    "server-restart": 1,
    "server-pause": 1,
    "disk-damaged": 1,
    "partition": 1,
    "disk-damaged-raw": 1,
}
"""What is done, and how often of 25 times; the last three in a cluster alone."""
OF_CLUSTERS: frozenset[Sort] = frozenset({"disk-damaged", "disk-damaged-raw", "partition"})
OF_SERVERS = 3
"""Times as often something is done to a server if there are several, which can survive it."""
NOT_USUAL: frozenset[Sort] = frozenset({"disk-damaged-raw"})
"""What no procedure allows: done only if it is named."""

LANES = 3
WINDOW_LANES = 5
"""Faults that are under way at once: of those that are simply done, and failpoints that are armed."""
BEYOND = 1.3
"""Times a lease: how long a pause is. Beyond two, a reconcilable effect that was stopped in its middle could
no longer be told from one that never happened (tests/drill/README.md)."""
SERVER_PAUSE_S = 2.0
AWAY_S = 2.0, 12.0
"""How long a server of a cluster is stopped or cut off: an election begins after 4 to 9 s."""
PASSES = 4
"""A process goes through an armed failpoint fewer times than this before it dies in it."""
UNREACHED_S = 10.0
"""After this long an armed failpoint is for whoever comes first, however many it was to let through."""
_ELSEWHERE_S = 0.2


class Planned(NamedTuple):
    """One fault to be."""

    sort: Sort
    whom: str
    """Identity of a service, or of a server of a cluster; empty for the one server and for failpoints."""
    failpoint: str = ""
    passes: int = 0
    how: str = ""
    """What is done to a disk, or from whom a server is cut off."""
    for_s: float = 0.0
    seed: int = 0


def usual_sorts(servers: int) -> tuple[Sort, ...]:
    """Return what is done if nobody says, to a mesh on so many servers."""
    return tuple(sort for sort in SORTS if sort not in NOT_USUAL and (servers > 1 or sort not in OF_CLUSTERS))


def plan(
    count: int,
    rng: random.Random,
    identities: Sequence[str],
    sorts: Sequence[Sort],
    *,
    lane: bool = False,
    servers: Sequence[str] = (),
) -> list[Planned]:
    """Return `count` faults: sorts in their proportions, failpoints each in turn, victims drawn.

    Args:
        lane: True if the fleet has a lane: its failpoints are among them.
        servers: those of a cluster, by name.
    """
    points = [name for name, point in FAILPOINTS.items() if lane or not point.lane]
    weighted = [sort for sort in SORTS if sort in sorts for _ in range(_weight(sort, servers))]
    drawn: list[Sort] = []
    while len(drawn) < count:
        drawn += rng.sample(weighted, len(weighted))
    turns: list[str] = []
    planned = []
    for sort in drawn[:count]:
        if sort == "failpoint":
            turns = turns or rng.sample(points, len(points))
            planned.append(Planned(sort, "", turns.pop(), rng.randrange(PASSES)))
        elif servers and _is_of_server(sort):
            planned.append(_to_server(sort, rng, servers))
        else:
            planned.append(Planned(sort, "" if sort.startswith("server") else rng.choice(identities)))
    return planned


def _is_of_server(sort: Sort) -> bool:
    return sort.startswith("server") or sort in OF_CLUSTERS


def _weight(sort: Sort, servers: Sequence[str]) -> int:
    return SORTS[sort] * (OF_SERVERS if servers and _is_of_server(sort) else 1)


def _to_server(sort: Sort, rng: random.Random, servers: Sequence[str]) -> Planned:
    """Draw what is done to which server of a cluster."""
    how = rng.choice(sorted(DAMAGES)) if sort.startswith("disk") else ""
    how = rng.choice(("servers", "everything")) if sort == "partition" else how
    return Planned(
        sort, rng.choice(servers), how=how, for_s=rng.uniform(*AWAY_S), seed=rng.randrange(1_000_000)
    )


class Injector:
    """Does what is planned. `run` ends when it is done but for failpoints that no request came through.

    Args:
        lease_of: the lease (s) of what an agent, or a guard, has in hand, by name.
        worth_it: waits until there is work in flight; False once there will be none any more.
        on_done: told of each fault that is done.
    """

    def __init__(
        self,
        processes: Processes,
        planned: Sequence[Planned],
        *,
        lease_of: Callable[[str], float],
        worth_it: Callable[[], Awaitable[bool]],
        on_done: Callable[[], Awaitable[None]],
    ) -> None:
        self._processes = processes
        self._failpoints = [fault for fault in reversed(planned) if fault.sort == "failpoint"]
        self._others = [fault for fault in reversed(planned) if fault.sort != "failpoint"]
        self._lease_of = lease_of
        self._worth_it = worth_it
        self._on_done = on_done
        self._in_hand: list[Planned] = []
        self.done = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as lanes:
            for _ in range(LANES):
                lanes.create_task(self._strikes())
            for _ in range(WINDOW_LANES):
                lanes.create_task(self._deaths())

    @property
    def left(self) -> list[str]:
        """What was planned and is not done: failpoints by name, else what would have been done to whom."""
        left = (*self._in_hand, *self._others, *self._failpoints)
        return sorted(fault.failpoint or f"{fault.sort} {fault.whom}".rstrip() for fault in left)

    async def _strikes(self) -> None:
        """Do what is done to a process, wherever it is: on a slow machine also after the last request."""
        while self._others:
            await self._worth_it()
            if self._others:
                with self._taking(self._others.pop()) as fault, contextlib.suppress(NotCurrent):
                    await self._strike(fault)
                await self._count()

    async def _deaths(self) -> None:
        """Let processes die in failpoints, as long as somebody comes through any."""
        while self._failpoints and await self._worth_it():
            if not self._failpoints:
                return
            with self._taking(self._failpoints.pop()) as fault:
                died = await self._die_in(fault)
            if died:
                await self._count()
            else:
                self._failpoints.insert(0, fault)

    @contextlib.contextmanager
    def _taking(self, fault: Planned) -> Iterator[Planned]:
        """Have a fault in hand; one that is broken off stays there."""
        self._in_hand.append(fault)
        yield fault
        self._in_hand.remove(fault)

    async def _count(self) -> None:
        self.done += 1
        await self._on_done()

    async def _strike(self, fault: Planned) -> None:
        processes = self._processes
        match fault.sort:
            case "server-kill":
                await processes.kill_server(fault.whom)
            case "server-restart":
                await processes.restart_server(fault.whom)
            case "server-pause":
                await processes.pause_server(fault.for_s or SERVER_PAUSE_S, fault.whom)
            case "disk-damaged" | "disk-damaged-raw":
                emptied = fault.sort == "disk-damaged"
                await processes.damage_server(fault.whom, fault.how, fault.seed, emptied=emptied)
            case "partition":
                await processes.part_server(fault.whom, fault.for_s, clients=fault.how == "everything")
            case _:
                await self._to_service(fault)

    async def _to_service(self, fault: Planned) -> None:
        victim = self._processes.running[fault.whom]
        async with victim.one_at_a_time:
            await victim.ready.wait()
            if fault.sort == "kill":
                await self._processes.kill(fault.whom)
            elif fault.sort == "restart":
                await self._processes.restart(fault.whom)
            else:
                await self._processes.pause(fault.whom, BEYOND * self._lease_of(victim.service.name))

    async def _die_in(self, fault: Planned) -> bool:
        """Arm a failpoint and wait until somebody has died in it; False if nobody has or will."""
        processes, failpoint = self._processes, fault.failpoint
        if failpoint in processes.armed:  # another lane waits for the same
            await asyncio.sleep(_ELSEWHERE_S)
            return False
        before = processes.deaths(failpoint)
        processes.arm(failpoint, fault.passes)
        while True:
            try:
                async with asyncio.timeout(UNREACHED_S):
                    await processes.died_in(failpoint, before + 1)
                return True
            except TimeoutError:
                if not processes.disarm(failpoint):
                    continue  # somebody is dying in it
            if not await self._worth_it():
                return False
            processes.arm(failpoint)  # nobody came through so often: now it is whoever comes first
