"""Dead letters as they are kept. Anybody with a name writes their own, so what is in one is not believed."""

import base64
from collections.abc import AsyncIterator

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import StoredMessage, every, get_seq
from mesh.ops.errors import NotFound
from protocol.wire import codec, subjects
from protocol.wire.notices import DeadLetter
from protocol.wire.subjects import parse_dead

STREAM = "DEAD"
SUBJECTS = subjects.DEAD_LETTERS


async def letters(bus: Bus, from_seq: int = 1) -> AsyncIterator[tuple[int, DeadLetter]]:
    """Yield all of them from `from_seq` on with their sequence numbers, the oldest first."""
    async for kept in every(bus, STREAM, SUBJECTS, from_seq):
        yield kept.seq, _letter(kept)


async def letter_at(bus: Bus, seq: int) -> DeadLetter:
    """Return one. Raises NotFound."""
    kept = await get_seq(bus, STREAM, seq)
    if kept is None:
        raise NotFound(f"there is no dead letter {seq}")
    return _letter(kept)


def _letter(kept: StoredMessage) -> DeadLetter:
    """Return a letter under the name that the broker knows, even if it cannot be read."""
    by = parse_dead(kept.subject)
    letter = codec.readable(kept.data, DeadLetter)
    if letter is not None and _is_base64(letter.data):
        return msgspec.structs.replace(letter, by=by)
    return DeadLetter(
        at=kept.at,
        by=by,
        code="unreadable",
        detail="this is no dead letter as this version knows them",
        subject="",
        data=base64.b64encode(kept.data).decode(),
    )


def _is_base64(data: str) -> bool:
    try:
        base64.b64decode(data)
    except ValueError:
        return False
    return True
