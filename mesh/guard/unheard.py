"""What waits in the queues about a request: a word that came in time counts, however late it is read.

The queues are work queues: a message lies there until it is decided. So before a guard calls anything over,
it asks the leaders of the queues whether a message stored before the time is still there. Later ones hold
nothing up, and nobody can postpone an end for ever.
"""

import asyncio

from mesh.bus.connection import Bus
from mesh.bus.reader import following
from mesh.bus.streams import CONTROLS, controls_of, proposals_of
from mesh.errors import ApiCode, ApiError
from protocol.domain.steps import NeedUnheard
from protocol.wire import subjects
from protocol.wire.commands import Command


async def unheard(
    bus: Bus, request: str, need: NeedUnheard, in_hand: Command | None, partitions: int
) -> bool:
    """Return True if a message about the request that was stored in time waits. Raises BusError.

    Args:
        in_hand: the command that is being decided; it lies in its queue until it is acknowledged.
        partitions: how many the mesh has.
    """
    queues = [
        *(
            (proposals_of(agent), subjects.queued("prop", agent, request, partitions))
            for agent in need.agents
        ),
        *(
            (controls_of(client), subjects.queued("ctl", client, request, partitions))
            for client in need.clients
        ),
        (CONTROLS, subjects.queued("ctl", None, request, partitions)),
    ]
    waits = [_waits(bus, queue, subject, need.before, in_hand) for queue, subject in queues]
    return any(await asyncio.gather(*waits))


async def _waits(bus: Bus, queue: str, subject: str, before: int, in_hand: Command | None) -> bool:
    seq = 1
    while True:
        try:
            found = await following(bus, queue, subject, seq)
        except ApiError as error:
            if error.err_code == ApiCode.STREAM_NOT_FOUND:  # its sender has left the fleet
                return False
            raise
        if found is None:
            return False
        stored = found.at
        if stored >= before:
            return False
        sender = subjects.parse_queued(found.subject).sender
        if in_hand is None or (sender, stored) != (in_hand.sender, in_hand.stored):
            return True
        seq = found.seq + 1
