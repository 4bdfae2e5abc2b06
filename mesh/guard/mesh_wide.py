"""Control messages to the whole mesh: freeze and thaw, which guards write to CONF for each other."""

import msgspec

from mesh.bus.connection import Bus
from protocol.messages import Control, Freeze, Thaw
from protocol.standing import Objection
from protocol.subjects import FREEZE


class MeshWide:
    """Obeys operators who speak to no request in particular."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def obey(self, control: Control, sender: str, role: str) -> Objection | None:
        """Do what `control` says, or say why not. Idempotent. Raises BusError."""
        if role != "operator":
            return Objection("not_allowed", "only operators speak to the whole mesh")
        if not isinstance(control, Freeze | Thaw):
            return Objection("not_allowed", "the whole mesh can only be frozen and thawed")
        entry = {
            "frozen": isinstance(control, Freeze),
            "by": control.by or sender,
            "sender": sender,
            "reason": control.reason,
        }
        await self._bus.publish_durable(FREEZE, msgspec.json.encode(entry))
        return None
