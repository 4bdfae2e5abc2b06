"""The one timer of a request: it stands no later than the next time at which something falls due."""

from mesh.bus import schedules
from mesh.bus.connection import Bus
from mesh.errors import SequenceConflict
from mesh.guard.cache import CachedRequest, Timer


async def arm_timer(bus: Bus, cached: CachedRequest, request: str, at: int, now: int) -> None:
    """Arm the request's timer unless it stands early enough; it is only ever moved to earlier.

    Args:
        at: when the request has to be woken at the latest, UTC µs.

    Raises BusError.
    """
    stands = cached.timer
    if stands is None or (stands.at is not None and stands.at <= now):
        stands = await _standing(bus, request)
    while stands.at is None or stands.at > at:
        try:
            seq = await schedules.arm(bus, request, at, after=stands.seq)
            stands = Timer(seq, at)
        except SequenceConflict:
            stands = await _standing(bus, request)
    cached.timer = stands


async def _standing(bus: Bus, request: str) -> Timer:
    try:
        found = await schedules.standing(bus, request)
    except ValueError:
        return Timer(None, None)  # it says no time: whatever it is, it is replaced
    return Timer(0, None) if found is None else Timer(found[0], found[1])
