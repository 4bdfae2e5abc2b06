"""A policy with a shadow beside one without: the same chain of agents, in turns.

The shadow disagrees with the last handoff of each request.
"""

import contextlib
from pathlib import Path

import msgspec

from bench.chain import DRIVER, chain
from bench.figures import Figure, Target, ratio, spread
from bench.place import AGENTS, place
from bench.rounds import MANY, SERVER, Plan, Side
from mesh.bus.roles import ADMIN, GUARD
from protocol.wire import subjects
from protocol.wire.config import Policy
from protocol.wire.shadow import ShadowEntry

_SHADOW = ShadowEntry(policy=Policy(max_depth=len(AGENTS) - 2))
_COSTS = Target("at most", 1.02)


async def shadows(directory: Path, *, unsynced: Plan, synced: Plan) -> list[Figure]:
    """Return what a request costs under a policy with a shadow, beside the same without one."""
    figures: list[Figure] = []
    for sync_always, plan in ((False, unsynced), (True, synced)):
        figures += await _compared(directory / str(sync_always), plan, sync_always=sync_always)
    return figures


async def _compared(directory: Path, plan: Plan, *, sync_always: bool) -> list[Figure]:
    async with contextlib.AsyncExitStack() as stack:
        sides = []
        for name in ("shadow", "alone"):
            at = await stack.enter_async_context(place(directory / name, sync_always=sync_always))
            crew = await stack.enter_async_context(chain(at, directory / name))
            if name == "shadow":
                async with await at.connect_as(ADMIN) as admin:
                    await admin.publish_durable(subjects.shadow("default"), msgspec.json.encode(_SHADOW))
            pids = {SERVER: at.server.pid, **{each: member.pid for each, member in crew.members.items()}}
            sides.append(Side(name, pids, [crew.members[DRIVER]]))
        for side in sides:
            await side.warm(plan.crowded)
        for number in range(plan.rounds):
            for side in sides if number % 2 else reversed(sides):
                await side.measure_alone(plan.alone)
            for side in sides:
                await side.measure_crowded(plan.crowded)
    shadow, alone = sides
    sync = "fsync always" if sync_always else "no fsync"
    cpu_ms = [[used[GUARD].cpu_ms for used in side.use] for side in sides]
    measured: tuple[tuple[str, str, list[float], list[float], Target | None], ...] = (
        ("p50 of one request alone", "ms", shadow.p50_ms, alone.p50_ms, _COSTS),
        (f"requests a second, {MANY} at a time", "1/s", shadow.per_s, alone.per_s, None),
        ("CPU a request, guard", "ms", cpu_ms[0], cpu_ms[1], None),
    )
    return [
        Figure(f"{sync}, a shadow: {what}", unit, spread(ours), spread(theirs), ratio(ours, theirs), target)
        for what, unit, ours, theirs, target in measured
    ]
