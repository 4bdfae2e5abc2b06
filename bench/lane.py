"""The lane beside the queues: the same chain of agents, in turns, with guards asked first and without."""

import contextlib
from pathlib import Path

from bench.chain import DRIVER, chain
from bench.figures import Figure, ratio, spread
from bench.place import FLEET, place, without_lane
from bench.rounds import MANY, SERVER, Plan, Side


async def lanes(directory: Path, *, unsynced: Plan, synced: Plan) -> list[Figure]:
    """Return what a request costs with the lane, beside the same without it."""
    figures: list[Figure] = []
    for sync_always, plan in ((False, unsynced), (True, synced)):
        figures += await _compared(directory / str(sync_always), plan, sync_always=sync_always)
    return figures


async def _compared(directory: Path, plan: Plan, *, sync_always: bool) -> list[Figure]:
    async with contextlib.AsyncExitStack() as stack:
        sides = []
        for name, fleet in (("lane", FLEET), ("queue", without_lane(FLEET))):
            at = await stack.enter_async_context(
                place(directory / name, sync_always=sync_always, fleet=fleet)
            )
            crew = await stack.enter_async_context(chain(at, directory / name, fleet))
            pids = {SERVER: at.server.pid, **{each: member.pid for each, member in crew.members.items()}}
            sides.append(Side(name, pids, [crew.members[DRIVER]]))
        for side in sides:
            await side.warm(plan.crowded)
        for _ in range(plan.rounds):
            for side in sides:
                await side.measure_alone(plan.alone)
            for side in sides:
                await side.measure_crowded(plan.crowded)
    lane, queue = sides
    sync = "fsync always" if sync_always else "no fsync"
    cpu_ms = [[sum(each.cpu_ms for each in used.values()) for used in side.use] for side in sides]
    measured: tuple[tuple[str, str, list[float], list[float]], ...] = (
        ("p50 of one request alone", "ms", lane.p50_ms, queue.p50_ms),
        (f"requests a second, {MANY} at a time", "1/s", lane.per_s, queue.per_s),
        ("CPU a request, of all processes", "ms", cpu_ms[0], cpu_ms[1]),
        *(
            (
                f"CPU a request, {member}",
                "ms",
                [used[member].cpu_ms for used in lane.use],
                [used[member].cpu_ms for used in queue.use],
            )
            for member in (SERVER, "guard", DRIVER)
        ),
    )
    return [
        Figure(f"{sync}, lane: {what}", unit, spread(ours), spread(theirs), ratio(ours, theirs))
        for what, unit, ours, theirs in measured
    ]
