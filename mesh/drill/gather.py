"""Gathering evidence: everything that the streams hold at the end, read as a viewer reads it."""

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.log import JetStreamLog
from mesh.bus.roles import GET
from mesh.drill.evidence import StepName

_BATCH = 1000


class _Line(msgspec.Struct, frozen=True):
    request: str


_LINE = msgspec.json.Decoder(_Line)


async def events_by_request(bus: Bus, consumer: str) -> dict[str, list[bytes]]:
    """Return every stored event by request, each request's in the log's order."""
    found: dict[str, list[bytes]] = {}
    async for stored in JetStreamLog(bus).follow(consumer, tail=False):
        found.setdefault(_LINE.decode(stored.body).request, []).append(stored.body)
    return found


async def all_steps(bus: Bus) -> dict[StepName, bytes]:
    """Return every stored step by its name."""
    found = {}
    for subject, data in await _every(bus, "STEPS", "mesh.step.>"):
        _, _, agent, request, turn, step = subject.split(".")
        found[StepName(agent, request, turn, step)] = data
    return found


async def dead_letters(bus: Bus) -> list[bytes]:
    """Return every dead letter, the oldest first."""
    return [data for _, data in await _every(bus, "DEAD", "mesh.dead.>")]


async def _every(bus: Bus, stream: str, subject: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    seq = 1
    while True:
        body = {"seq": seq, "batch": _BATCH, "next_by_subj": subject}
        part = await bus.collect(f"{GET}{stream}", msgspec.json.encode(body))
        if not part:
            return found
        found += [(message.headers["Nats-Subject"], message.data) for message in part]
        seq = int(part[-1].headers["Nats-Sequence"]) + 1
