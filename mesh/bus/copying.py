"""Copies whole messages out of a stream and into an empty one: sequence, subject, headers and bytes.

Backup and restore use it. A restored message gets a new storage time. Its sequence is kept in LOG and CONF,
where other stored data refers to it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import MOST_BYTES, following, stored_message
from mesh.bus.request_mux import PubAck
from mesh.bus.roles import GET
from mesh.errors import RestoreFailed

_BATCH = 1000
_API_S = 60.0
_AGAIN_S = 0.05
"""How long a replica that is behind is given before it is asked again (s)."""
_ON_THEIR_WAY = 256
"""Most messages that are published but not yet acknowledged."""
_BYTES_ON_THEIR_WAY = 8 << 20
_SERVERS = "Nats-"
"""Prefix of headers that the server reads or adds. They are not copied: a condition held only once."""


class WholeMessage(NamedTuple):
    """A stored message with its sender's headers."""

    seq: int
    subject: str
    headers: Mapping[str, str]
    data: bytes
    stamp: str = ""
    """Storage time in the server's format."""


async def whole(bus: Bus, stream: str, from_seq: int, to_seq: int) -> AsyncIterator[list[WholeMessage]]:
    """Yield the messages of a stream from `from_seq` to `to_seq` (both inclusive), in order, in batches.

    Any replica may answer, also one that is behind. So the stream's leader says where the messages end.
    It waits while the bus is away, and for replicas. Raises BusError otherwise.
    """
    while from_seq <= to_seq:
        asked = {"seq": from_seq, "batch": min(_BATCH, to_seq - from_seq + 1), "max_bytes": MOST_BYTES}
        body = msgspec.json.encode(asked)
        answers = await bus.retry_unavailable(partial(bus.collect, f"{GET}{stream}", body))
        found = []
        for answer in answers:
            seq, subject, data, stamp = stored_message(answer)
            if seq > to_seq:
                break
            own = {name: value for name, value in answer.headers.items() if not name.startswith(_SERVERS)}
            found.append(WholeMessage(seq, subject, own, data, stamp))
        if found:
            yield found
            from_seq = found[-1].seq + 1
        elif await bus.retry_unavailable(partial(_has, bus, stream, from_seq, to_seq)):
            await asyncio.sleep(_AGAIN_S)
        else:
            return


async def _has(bus: Bus, stream: str, from_seq: int, to_seq: int) -> bool:
    """Return True if a stream's leader has a message from `from_seq` to `to_seq`."""
    first = await following(bus, stream, ">", from_seq)
    return first is not None and first.seq <= to_seq


async def create_stream(bus: Bus, config: Mapping[str, Any]) -> None:
    """Create a stream. Raises ApiError."""
    await bus.api(f"STREAM.CREATE.{config['name']}", config, timeout_s=_API_S)


async def update_stream(bus: Bus, config: Mapping[str, Any]) -> None:
    """Change a stream's configuration. Raises ApiError."""
    await bus.api(f"STREAM.UPDATE.{config['name']}", config, timeout_s=_API_S)


async def delete_stream(bus: Bus, stream: str) -> None:
    """Delete a stream and its messages. Raises ApiError."""
    await bus.api(f"STREAM.DELETE.{stream}", timeout_s=_API_S)


class Writer:
    """Stores messages in one stream in order, with many publishes in flight.

    Args:
        exact: each message must get its old sequence. Then there may be no gaps between messages.
    """

    def __init__(self, bus: Bus, stream: str, *, exact: bool) -> None:
        self._bus, self._stream, self._exact = bus, stream, exact
        self._asked = deque[tuple[WholeMessage, asyncio.Task[PubAck]]]()
        self._bytes = 0

    async def store(self, messages: Iterable[WholeMessage]) -> None:
        """Publish messages, and wait while too many are in flight. Raises RestoreFailed, BusError."""
        for message in messages:
            while len(self._asked) >= _ON_THEIR_WAY or self._bytes > _BYTES_ON_THEIR_WAY:
                await self._settle()
            # As it was, to the byte: with one more header, a stream that is nearly full would not fit.
            headers = message.headers or None
            publish = self._bus.publish_durable(message.subject, message.data, headers, timeout_s=_API_S)
            self._asked.append((message, asyncio.create_task(publish)))
            self._bytes += len(message.data)

    async def finish(self) -> None:
        """Return once every message is stored. Raises as `store`."""
        while self._asked:
            await self._settle()

    async def close(self) -> None:
        """Abandon publishes in flight. Idempotent."""
        tasks = [task for _, task in self._asked]
        self._asked.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _settle(self) -> None:
        message, task = self._asked.popleft()
        self._bytes -= len(message.data)
        ack = await task
        if ack.stream != self._stream:
            raise RestoreFailed(f"{message.subject} of {self._stream} was stored in {ack.stream}")
        if self._exact and ack.seq != message.seq:
            raise RestoreFailed(
                f"{self._stream}: message {message.seq} was stored as {ack.seq}: somebody else writes there; "
                "stop all services, empty the server's store, and restore again"
            )
