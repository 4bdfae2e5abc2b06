"""Who fills the log: of a span of time, the part of each client and of each agent, from a sample.

Reading a whole day of a busy log takes minutes. A few hundred events, evenly spaced, tell the parts to a few
percent. The span's first event is found by bisection, since the log's times do not run back.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import StoredMessage, batch, bounds
from mesh.ops.servers import Results
from protocol.wire import codec, subjects
from protocol.wire.ids import submitter_of

SAMPLE = 400
"""Events that are read of a span. Of fewer, all are."""
SPANS = {"hour": 3600.0, "day": 86_400.0}
_SIDE_BY_SIDE = 50
_SHOWN = 3
_KIB, _MIB = 1 << 10, 1 << 20


class LogUse(NamedTuple):
    """What a span of the log took: events, about how many bytes, and whose they are (0 to 1)."""

    events: int
    bytes: int
    clients: Mapping[str, float]
    """By whose requests they belong to."""
    agents: Mapping[str, float]
    """By which agent proposed what they answer. What clients, people and guards say is nobody's here."""


class _Sender(msgspec.Struct):
    sender: str = ""


async def log_use(bus: Bus, span_s: float, sample: int = SAMPLE) -> LogUse:
    """Return what the last `span_s` of the log took. Raises BusError."""
    oldest, last = await bounds(bus, "LOG")
    first = await _first_since(bus, int((time.time() - span_s) * 1e6), oldest, last)
    events = last - first + 1
    if not events:
        return LogUse(0, 0, {}, {})
    places = sorted({first + round(n * (events - 1) / max(1, sample - 1)) for n in range(sample)})
    turnstile = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def one(seq: int) -> list[StoredMessage]:
        async with turnstile:
            return await batch(bus, "LOG", None, seq, 1)

    found = [message for part in await asyncio.gather(*map(one, places)) for message in part]
    clients, agents, read = Counter[str](), Counter[str](), 0
    for message in found:
        size, request = len(message.data), subjects.parse_evt(message.subject).request
        sender, client = codec.readable(message.data, _Sender), submitter_of(request)
        read += size
        clients[client] += size
        if sender is not None and sender.sender not in ("", client):
            agents[sender.sender] += size
    whole = max(1, read)
    return LogUse(
        events,
        round(read / max(1, len(found)) * events),
        {name: size / whole for name, size in clients.most_common()},
        {name: size / whole for name, size in agents.most_common()},
    )


async def _first_since(bus: Bus, since: int, first: int, last: int) -> int:
    """Return the place of the first event stored at `since` (UTC µs) or later; `last + 1` for none."""
    low, high = first, last + 1
    while low < high:
        middle = (low + high) // 2
        found = await batch(bus, "LOG", None, middle, 1)
        if found and found[0].at < since:
            low = found[0].seq + 1
        else:
            high = middle
    return low


async def who_fills_it(bus: Bus) -> Results:
    """Yield a sentence on each span."""
    for name, span_s in SPANS.items():
        use = await log_use(bus, span_s)
        if use.events:
            told = f"in the last {name} {use.events} events, about {_size(use.bytes)}"
            yield "ok", f"{told}; by client: {_parts(use.clients)}; by agent: {_parts(use.agents)}"


def _parts(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in list(shares.items())[:_SHOWN]) or "none"


def _size(bytes_: int) -> str:
    return f"{bytes_ / _MIB:.1f} MiB" if bytes_ >= _MIB else f"{bytes_ / _KIB:.1f} KiB"
