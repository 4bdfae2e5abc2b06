"""What a replay of agents' code reads from the bus, as one export in a file."""

import tempfile
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.reader import bounds
from mesh.bus.stores import stored_steps
from mesh.ops.journals import named_lines
from mesh.ops.log import first_after, stored_bodies
from mesh.replay.export import StoredStep, step_line
from protocol.domain.submit import AHEAD_S
from protocol.wire import codec
from protocol.wire.ids import is_token
from protocol.wire.records import Record


async def recorded_lines(
    bus: Bus, requests: Sequence[str], agents: Collection[str], *, since: int = 0
) -> AsyncIterator[bytes]:
    """Yield the events of requests, what these agents journaled for them, and what both refer to.

    Args:
        requests: their ids; without any, all requests.
        since: of all requests, those that began at this time (UTC µs) or later are complete.

    Raises OldForm, NotFound, BusError.
    """
    if requests or not since:
        async for body in stored_bodies(bus, requests):
            yield body
    else:
        first = await first_after(bus, since / 1e6 - AHEAD_S)
        if first and (await bounds(bus, "LOG"))[1]:
            async for stored in JetStreamLog(bus).follow(first, tail=False):
                yield stored.data
    prompts = set[tuple[str, str]]()
    for request in requests or (None,):
        async for step in stored_steps(bus, request, agents):
            record = codec.readable(step.data, Record)
            if record is not None and record.prompt is not None and is_token(record.prompt.fixed):
                prompts.add((step.subject.split(".")[2], record.prompt.fixed))
            yield step_line(StoredStep(step.subject, step.data))
    async for line in named_lines(bus, prompts):
        yield line


@contextmanager
def recorded_file() -> Iterator[Path]:
    """Yield the path of a file that only its owner can read, and that is removed with the block."""
    with tempfile.TemporaryDirectory(prefix="mesh-replay-") as folder:
        yield Path(folder) / "record.jsonl"
