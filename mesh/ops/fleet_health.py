"""What stands still though nothing is broken: a frozen mesh, an open breaker, an agent that nobody serves."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.reader import StoredMessage, every, up_to
from mesh.cli.output import when
from mesh.errors import LogError, ProtocolError
from mesh.ops.findings import Finding, found, ok, unknown
from mesh.ops.freezing import mesh_freeze
from mesh.ops.requests import decoded
from mesh.ops.roster import fleet_of, inbox_state, instances
from protocol.ledger import fold
from protocol.wire import documents, subjects
from protocol.wire.subjects import inbox

_MOST = 200
"""Events of an inbox that are looked into."""
_SHOWN = 3
_AT_ONCE = 16


async def frozen(bus: Bus) -> AsyncIterator[Finding]:
    """Say whether the whole mesh is frozen, by whom and since when."""
    stands = await mesh_freeze(bus)
    if stands.frozen:
        yield found("freeze", f"the whole mesh is frozen {stands.in_words}; mesh thaw lets it go on")
    else:
        yield ok("freeze", "the mesh is not frozen")


# --- breakers -------------------------------------------------------------------------------------


async def breakers(bus: Bus) -> AsyncIterator[Finding]:
    """Name every agent whose breaker is not closed."""
    closed = True
    async for kept in every(bus, "CONF", subjects.BREAKERS):
        said = _breaker(kept)
        if said is not None:
            closed = False
            yield found("breakers", said)
    if closed:
        yield ok("breakers", "none is open")


def _breaker(kept: StoredMessage) -> str | None:
    """Return what is to be said of a breaker's entry, None if it is closed."""
    agent = kept.subject.rpartition(".")[2]
    try:
        entry = documents.read_breaker(kept.data)
    except documents.DocumentInvalid as invalid:
        return f"the entry of {agent} cannot be read ({invalid}): it is taken for open, until a trial"
    if entry.state == "closed":
        return None
    so = "is given no work" if entry.state == "open" else "is given one piece of work, to see how that goes"
    since = when(entry.opened_at or kept.at)
    return f"the breaker of {agent} is {entry.state} since {since}: it failed too often, it {so}"


# --- agents ---------------------------------------------------------------------------------------


async def agents(bus: Bus) -> AsyncIterator[Finding]:
    """Name every agent that nobody serves, and what waits for it since when."""
    fleet = await fleet_of(bus)
    alive = await instances(bus, fleet.agents)
    if alive is None:
        yield unknown("agents", f"{bus.name} may not ask who is there")
        return
    away = [name for name in fleet.agents if not alive[name]]
    for name in away:
        yield found("agents", f"nobody serves {name}; {await _what_waits(bus, name)}")
    if not away:
        counts = ", ".join(f"{name} ({len(alive[name])})" for name in fleet.agents)
        yield ok("agents", f"all are served: {counts}")


class Held(NamedTuple):
    """An open turn that its agent does not work on."""

    since: int
    """UTC µs."""
    request: str


async def _what_waits(bus: Bus, agent: str) -> str:
    pending, from_seq = await inbox_state(bus, agent)
    if not pending:
        return "nothing waits for it"
    held = await turns_waiting(bus, agent, from_seq)
    more = "" if pending <= _MOST else "at least "
    if not held:
        return "nothing that is still open waits for it"
    many = "1 handoff waits" if len(held) == 1 else f"{len(held)} handoffs wait"
    shown = ", ".join(f"{when(each.since)} ({each.request})" for each in held[:_SHOWN])
    rest = f" and {len(held) - _SHOWN} more" if len(held) > _SHOWN else ""
    return f"{more}{many} for it, the oldest since {shown}{rest}"


async def turns_waiting(bus: Bus, agent: str, from_seq: int) -> list[Held]:
    """Return the open turns of an agent in its inbox from `from_seq` on, the oldest first.

    The first `_MOST` events are looked into. What was ended meanwhile is not listed.
    """
    events = await up_to(bus, "LOG", inbox(agent), from_seq, _MOST)
    requests = dict.fromkeys(kept.subject.rpartition(".")[2] for kept in events)
    room = asyncio.Semaphore(_AT_ONCE)

    async def look(request: str) -> list[Held]:
        async with room:
            try:
                stored = await JetStreamLog(bus, leader=False).read(request)
                ledger = fold(decoded(each.body for each in stored))
            except (LogError, ProtocolError):
                return []
        waits = (turn for turn in ledger.open.values() if turn.agent == agent and turn.state == "working")
        return [Held(turn.clock, request) for turn in waits]

    found = await asyncio.gather(*(look(request) for request in requests))
    return sorted(each for part in found for each in part)
