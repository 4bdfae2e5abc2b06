"""A drill: requests and faults side by side, so that there is always work to be hurt; then the evidence.

evidence = await drill(Plan(setting=Setting(file=drill_fleet()), stories=…, faults=60, seed=7), directory)
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mesh.bus.roles import GUARD
from tests.drill.arena import Arena, Setting
from tests.drill.evidence import Evidence
from tests.drill.faults import LANES, WINDOW_LANES, Injector, Sort, plan, usual_sorts
from tests.drill.stories import Story

FAULTS_A_REQUEST = 0.3
"""How many faults there are for each request if nobody says."""
CONCURRENCY = 32
STILL_S = 180.0
"""How long nothing may move, no request and no fault, before a drill is broken off: many times what a lease,
a restart and a busy machine take together."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a drill is to do."""

    setting: Setting
    stories: Sequence[Story]
    faults: int
    seed: int
    sorts: Sequence[Sort] = usual_sorts(1)
    concurrency: int = CONCURRENCY
    still_s: float = STILL_S


def usual_faults(requests: int) -> int:
    """Return how many faults a drill of so many requests has."""
    return math.ceil(requests * FAULTS_A_REQUEST)


class _Pace:
    """Releases requests as the faults go on: each is done while there is work in flight."""

    def __init__(self, requests: int, faults: int, concurrency: int) -> None:
        self._requests, self._faults, self._concurrency = requests, faults, concurrency
        self.released = 0
        self.in_flight = 0
        self.injector: Injector | None = None
        self._moved = time.monotonic()
        self._changed = asyncio.Condition()

    async def change(self) -> None:
        async with self._changed:
            self._moved = time.monotonic()
            self._changed.notify_all()

    async def release(self) -> None:
        """Wait until one more request may be sent."""
        async with self._changed:
            await self._changed.wait_for(self._may_release)
            self.released += 1
            self.in_flight += 1
            self._moved = time.monotonic()
            self._changed.notify_all()

    def _may_release(self) -> bool:
        if not self.in_flight:
            return True  # a fault may be waiting for somebody to come by
        done = 0 if self.injector is None else self.injector.done
        share = 1.0 if not self._faults else (done + LANES + WINDOW_LANES) / self._faults
        return self.in_flight < self._concurrency and self.released < self._requests * share

    async def rested(self) -> None:
        self.in_flight -= 1
        await self.change()

    async def worth_it(self) -> bool:
        """Wait until requests are in flight; False when the last has come to rest."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.in_flight > 0 or self.released == self._requests)
            return self.in_flight > 0

    async def over(self, work: Iterable[asyncio.Task[None]], still_s: float) -> bool:
        """Wait until all work is done; False once nothing has moved for `still_s`.

        What moves is a request that is sent or comes to rest, and a fault that is done. A request that goes
        in circles does neither.
        """
        left = set(work)
        while left:
            wait_s = self._moved + still_s - time.monotonic()
            if wait_s <= 0:
                return False
            _, left = await asyncio.wait(left, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        return True


async def drill(
    planned: Plan, directory: Path, on_progress: Callable[[str], None] = lambda line: None
) -> Evidence:
    """Run a drill in a directory of its own and return what there is to be checked.

    It comes to an end whatever the fleet does: once nothing has moved for `Plan.still_s`, it is broken off,
    and the evidence names what did not come to rest.

    Raises DrillImpossible, LaunchFailed, ServerError: then there was no drill.
    """
    rng = random.Random(planned.seed)
    async with Arena(planned.setting, directory) as arena:
        names = {name: each.service.name for name, each in arena.processes.running.items()}
        on_progress(f"{', '.join(names)} at {arena.fleet.url}")
        servers = () if arena.cluster is None else tuple(arena.cluster.nodes)
        pace = _Pace(len(planned.stories), planned.faults, planned.concurrency)
        fleet = planned.setting.file.fleet
        pace.injector = injector = Injector(
            arena.processes,
            plan(planned.faults, rng, tuple(names), planned.sorts, lane=fleet.lane, servers=servers),
            lease_of=lambda name: fleet.guard_lease_s if name == GUARD else fleet.lease_s,
            worth_it=pace.worth_it,
            on_done=pace.change,
        )
        async with asyncio.TaskGroup() as tasks:
            breaking = tasks.create_task(injector.run())
            telling = tasks.create_task(_tell(arena, pace, planned, on_progress))
            resting = [tasks.create_task(_one(arena, pace, story)) for story in planned.stories]
            if not await pace.over((breaking, *resting), planned.still_s):
                on_progress(f"nothing has moved for {planned.still_s:g} s: this drill is broken off")
                arena.unfinished += [f"{name} does not take work" for name in arena.processes.not_ready]
                arena.unfinished += [f"{fault} was not done" for fault in injector.left]
            else:
                arena.unreached += injector.left
            arena.silent.update(request for request in arena.stories if not arena.watch.rests(request))
            for task in (breaking, telling, *resting):
                task.cancel()
        return await arena.evidence()


async def _one(arena: Arena, pace: _Pace, story: Story) -> None:
    await pace.release()
    try:
        for each in (story, *story.then):
            await arena.rest(await arena.send(each))
    finally:
        await pace.rested()


PROGRESS_S = 15.0


async def _tell(arena: Arena, pace: _Pace, planned: Plan, on_progress: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        done = 0 if pace.injector is None else pace.injector.done
        ended = pace.released - pace.in_flight
        on_progress(
            f"{ended} of {len(planned.stories)} requests at rest, {done} of {planned.faults} faults done"
        )
