"""Control messages to the whole mesh: freeze and thaw, which guards write to CONF for each other.

A control message may come again long after it was obeyed, when the guard that obeyed it died before it
acknowledged. So the entry says which message it is from, and only a newer one replaces it: an old
freeze must not undo the thaw that came after it.
"""

from mesh.bus.connection import Bus
from mesh.bus.stores import ConfUnreadable, parse_conf, read_conf, write_conf
from mesh.errors import SequenceConflict
from protocol.domain.admission import Rejected
from protocol.wire.commands import Control, Freeze, Thaw
from protocol.wire.config import FreezeEntry, read_freeze
from protocol.wire.subjects import FREEZE

_ATTEMPTS = 8
SKEW_US = 60_000_000
"""How far apart the clocks of two servers may be that stored messages one after the other."""


class MeshFreeze:
    """Obeys operators who speak to no request in particular."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def obey(
        self, control: Control, sender: str, role: str, seq: int, stored_us: int
    ) -> Rejected | None:
        """Do what `control` says unless a newer one was obeyed, or say why not. Idempotent.

        Args:
            seq: the message's place in CTL.
            stored_us: when it was stored, UTC µs.

        Raises BusError; SequenceConflict if other guards were faster every time: then it has to come again.
        """
        if role != "operator":
            return Rejected("not_allowed", "only operators speak to the whole mesh")
        if not isinstance(control, Freeze | Thaw):
            return Rejected("not_allowed", "the whole mesh can only be frozen and thawed")
        for left in reversed(range(_ATTEMPTS)):
            found = await read_conf(self._bus, FREEZE)
            try:
                stands = FreezeEntry() if found is None else parse_conf(found, read_freeze)
            except ConfUnreadable:
                stands = FreezeEntry()  # whatever it was: this order takes its place
            if not _is_newer(seq, stored_us, stands):
                return None
            frozen = isinstance(control, Freeze)
            entry = FreezeEntry(
                frozen=frozen,
                by=control.by or sender,
                sender=sender,
                reason=control.reason,
                since=stands.since if stands.since and stands.frozen == frozen else stored_us,
                at=stored_us,
                seq=seq,
            )
            try:
                await write_conf(self._bus, FREEZE, entry, after=0 if found is None else found.seq)
            except SequenceConflict:
                if not left:
                    raise
            else:
                break
        return None


def _is_newer(seq: int, stored_us: int, stands: FreezeEntry) -> bool:
    """Say whether a message came after the one that is obeyed.

    Its place says so; a queue that was made anew begins with 1 again, and then the time does.
    """
    return seq > stands.seq or stored_us > stands.at + SKEW_US
