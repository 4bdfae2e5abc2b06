"""The whole mesh, frozen and thawed: an entry of CONF that guards write, and that everybody may read."""

import asyncio

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import StoredMessage, get
from mesh.cli.output import when
from mesh.client import Client
from mesh.ops.control import Ears
from protocol.views.entries import named
from protocol.wire.commands import Freeze, Thaw
from protocol.wire.documents import DocumentInvalid, read_freeze
from protocol.wire.subjects import FREEZE, MESH_WIDE

_LOOK_S = 0.05


class MeshFreeze(msgspec.Struct, frozen=True, kw_only=True):
    """What CONF says about it."""

    frozen: bool
    by: str
    """The person."""
    sender: str
    """The operator whose credentials they had."""
    since: int
    """UTC µs."""
    reason: str

    @property
    def in_words(self) -> str:
        """Who did it, since when, and why."""
        who = named(self.by, self.sender) or "somebody"
        return f"by {who} since {when(self.since)}" + (f": {self.reason}" if self.reason else "")


THAWED = MeshFreeze(frozen=False, by="", sender="", since=0, reason="")
"""What holds where nobody ever froze anything."""


async def mesh_freeze(bus: Bus) -> MeshFreeze:
    """Return whether the mesh is frozen, and who says so. Raises BusError."""
    kept = await get(bus, "CONF", FREEZE)
    return THAWED if kept is None else _read(kept)


def _read(kept: StoredMessage) -> MeshFreeze:
    """Return what an entry says. One that cannot be read is a freeze, as it is to guards."""
    try:
        entry = read_freeze(kept.data)
    except DocumentInvalid as invalid:
        reason = f"{FREEZE} cannot be read ({invalid}), which guards take for a freeze"
        return MeshFreeze(frozen=True, by="", sender="", since=kept.at, reason=reason)
    return MeshFreeze(
        frozen=entry.frozen,
        by=entry.by,
        sender=entry.sender,
        since=entry.since or kept.at,
        reason=entry.reason,
    )


async def bring_about(bus: Bus, order: Freeze | Thaw, *, within_s: float = 30.0) -> MeshFreeze:
    """Freeze or thaw the mesh, and return what CONF says once it is in force.

    Raises ControlRefused when a guard does not obey, TimeoutError when none has within `within_s`: then
    the order is stored all the same, and the first guard that runs obeys it.
    """
    wanted = isinstance(order, Freeze)
    async with await Ears.open(bus, bus.name, MESH_WIDE) as ears:
        await Client(bus, bus.name).control(MESH_WIDE, order)
        try:
            async with asyncio.timeout(within_s):
                while True:
                    stands = await mesh_freeze(bus)
                    if stands.frozen is wanted:
                        return stands
                    ears.raise_what_was_said()
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise TimeoutError(
                f"no guard has obeyed within {within_s:g} s; the order is kept, and obeyed once one runs"
            ) from None
