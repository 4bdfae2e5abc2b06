"""Gathering evidence: everything that the streams hold at the end, read as a viewer reads it."""

from collections.abc import Iterable

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.reader import every
from mesh.client.journals import stored_steps
from tests.drill.evidence import StepName


class _Line(msgspec.Struct, frozen=True):
    request: str


_LINE = msgspec.json.Decoder(_Line)


async def events_by_request(bus: Bus) -> dict[str, list[bytes]]:
    """Return every stored event by request, each request's in the log's order."""
    found: dict[str, list[bytes]] = {}
    async for stored in JetStreamLog(bus).follow(tail=False):
        found.setdefault(_LINE.decode(stored.body).request, []).append(stored.body)
    return found


async def all_steps(bus: Bus, agents: Iterable[str]) -> dict[StepName, bytes]:
    """Return every step of these agents by its name."""
    found = {}
    async for kept in stored_steps(bus, None, agents):
        _, _, agent, request, turn, step = kept.subject.split(".")
        found[StepName(agent, request, turn, step)] = kept.data
    return found


async def dead_letters(bus: Bus) -> list[bytes]:
    """Return every dead letter, the oldest first."""
    return [kept.data async for kept in every(bus, "DEAD", None)]
