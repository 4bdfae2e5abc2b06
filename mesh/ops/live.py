"""What only a look at the running mesh can tell: whether anybody serves an agent, whether all is frozen.

The log does not have it. Whoever may not ask is not told; a story without it is still true.
"""

import asyncio
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from mesh.bus.connection import Bus
from mesh.bus.presence import is_served
from mesh.cli.options import Where
from mesh.cli.output import remark
from mesh.errors import Denied, MeshError
from mesh.ops.freezing import MeshFreeze, mesh_freeze
from protocol.views.entries import Timeline
from protocol.wire.ids import HUMAN


async def looked_at(where: Where, told: Timeline) -> Timeline:
    """Return an open request's story with what a look around adds; remark on it if the mesh is frozen."""
    agents = {waiting.for_ for waiting in told.waiting} - {HUMAN, "thaw", told.client}
    try:
        async with await where.connect("operator", "admin", "viewer") as bus:
            remark_if_frozen(await mesh_freeze(bus))
            there = await served(bus, agents)
    except MeshError:
        return told
    waits = tuple(replace(waiting, served=there.get(waiting.for_)) for waiting in told.waiting)
    return replace(told, waiting=waits)


def remark_if_frozen(stands: MeshFreeze) -> None:
    if stands.frozen:
        remark(f"mesh: the whole mesh is frozen {stands.in_words}; mesh thaw lets it go on")


async def served(bus: Bus, agents: Iterable[str]) -> Mapping[str, bool]:
    """Return whether anybody serves each agent; those that cannot be told are left out."""
    names = tuple(agents)
    found = await asyncio.gather(*(_is_served(bus, name) for name in names))
    return {name: there for name, there in zip(names, found, strict=True) if there is not None}


async def _is_served(bus: Bus, agent: str) -> bool | None:
    try:
        return await is_served(bus, agent)
    except Denied:
        return None
