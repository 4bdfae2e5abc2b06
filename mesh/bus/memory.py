"""What conversations remember, as it lies on the bus: a stream for each client, the newest record of a key.

Guards write it; a client reads its own, viewers and operators read all.
"""

import asyncio
from collections.abc import Iterable

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import every, get
from mesh.bus.streams import memory_of
from mesh.errors import SequenceConflict
from protocol.domain.memory import supersedes
from protocol.wire import codec, subjects
from protocol.wire.memory import MemoryRecord

_ATTEMPTS = 8
_AGAIN_S = 0.02


async def read_memory(bus: Bus, client: str, conversation: str | None = None) -> list[MemoryRecord]:
    """Return all records of a client's conversation, or of all its conversations. Raises BusError.

    What cannot be read is left out: nothing but guards writes here.
    """
    stored = every(bus, memory_of(client), subjects.memories(client, conversation))
    found = [codec.readable(each.data, MemoryRecord) async for each in stored]
    return [record for record in found if record is not None and conversation in (None, record.conversation)]


async def write_memory(bus: Bus, client: str, records: Iterable[MemoryRecord]) -> None:
    """Write records, each if none that is newer stands. Twice is the same as once.

    Raises BusError; SequenceConflict if other guards were faster every time.
    """
    await asyncio.gather(*(_write(bus, client, record) for record in records))


async def _write(bus: Bus, client: str, record: MemoryRecord) -> None:
    subject, body = subjects.memory(client, record.conversation, record.key), msgspec.json.encode(record)
    for left in reversed(range(_ATTEMPTS)):
        found = await get(bus, memory_of(client), subject)
        stands = None if found is None else codec.readable(found.data, MemoryRecord)
        if not supersedes(record, stands):
            return
        try:
            await bus.publish_durable(subject, body, after=0 if found is None else found.seq)
        except SequenceConflict:
            if not left:
                raise
            await asyncio.sleep(_AGAIN_S)  # another guard was first, or this replica lags
        else:
            return
