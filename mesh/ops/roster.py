"""The fleet, its agents' cards, the instances that answer now, and freezes."""

import asyncio
from collections.abc import Iterable

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.lane import is_served, ping, statistics
from mesh.bus.reader import get, newest
from mesh.bus.streams import inbox_consumer
from mesh.errors import Denied, NotFound
from mesh.service.printable import when
from protocol.views.timeline import Timeline, named
from protocol.wire import codec
from protocol.wire.config import AgentEntry, BreakerEntry, BreakerState, Fleet
from protocol.wire.documents import DocumentInvalid, read_breaker, read_fleet
from protocol.wire.freeze import FreezeEntry, read_freeze
from protocol.wire.ids import ANYBODY, HUMAN
from protocol.wire.records import Card
from protocol.wire.subjects import BREAKERS, FLEET, FREEZE, card

_AT_ONCE = 32
"""Agents that are asked concurrently."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A process that serves an agent, by its own account."""

    id: str
    """Empty if it is there and does not identify itself."""
    version: str
    started: str = ""
    handled: int = 0
    failed: int = 0
    last_error: str = ""


class RosterEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One agent of the fleet."""

    name: str
    entry: AgentEntry
    card: Card | None
    instances: tuple[Instance, ...] | None
    """None: these credentials may not ask."""
    waiting: int
    """Handoffs in its inbox that are not acknowledged."""


async def fleet_of(bus: Bus) -> Fleet:
    """Return the fleet document as guards see it. Raises NotFound, DocumentInvalid."""
    kept = await get(bus, "CONF", FLEET)
    if kept is None:
        raise NotFound("the bus has no fleet document; run `mesh setup`")
    return msgspec.structs.replace(read_fleet(kept.data), revision=kept.seq)


async def roster(bus: Bus) -> list[RosterEntry]:
    """Return the fleet's agents, each with its card and its instances. Raises NotFound, BusError."""
    fleet = await fleet_of(bus)
    alive = await instances(bus, fleet.agents)
    return [
        RosterEntry(
            name=name,
            entry=entry,
            card=await card_of(bus, name),
            instances=None if alive is None else alive[name],
            waiting=(await inbox_state(bus, name))[0],
        )
        for name, entry in fleet.agents.items()
    ]


async def card_of(bus: Bus, agent: str) -> Card | None:
    """Return an agent's card, which it writes itself; None if no card can be read. Raises BusError."""
    kept = await get(bus, "CARDS", card(agent))
    return None if kept is None else codec.readable(kept.data, Card)


async def inbox_state(bus: Bus, agent: str) -> tuple[int, int]:
    """Return how many handoffs an agent has not acknowledged, and the place of the oldest in the log."""
    info = await bus.api(f"CONSUMER.INFO.LOG.{inbox_consumer(agent)}")
    return int(info["num_pending"]) + int(info["num_ack_pending"]), int(info["ack_floor"]["stream_seq"]) + 1


async def instances(bus: Bus, agents: Iterable[str]) -> dict[str, tuple[Instance, ...]] | None:
    """Return the instances of each agent; None if these credentials may not ask. Raises BusError."""
    names, room = tuple(agents), asyncio.Semaphore(_AT_ONCE)

    async def asked(agent: str) -> tuple[Instance, ...]:
        async with room:
            return await _instances_of(bus, agent)

    try:
        return dict(zip(names, await asyncio.gather(*map(asked, names)), strict=True))
    except Denied:
        return None


async def _instances_of(bus: Bus, agent: str) -> tuple[Instance, ...]:
    """Return the instances that send statistics, or the one that answers a ping.

    An agent need not report more than that it is there; such an instance has no id.
    """
    pinged = await ping(bus, agent)
    if pinged is None:
        return ()
    reported = [_instance(data, agent) for data in await statistics(bus, agent)]
    found = {each.id: each for each in reported if each is not None}
    there = _instance(pinged, agent) or Instance(id="", version="")
    if not found or there.id:
        found.setdefault(there.id, there)
    return tuple(found.values())


class _Endpoint(msgspec.Struct, frozen=True):
    num_requests: int = 0
    num_errors: int = 0
    last_error: str = ""


class _Stats(msgspec.Struct, frozen=True):
    """An instance's answer, in the shape of NATS ADR-32. A listener may answer anything."""

    name: str
    id: str
    version: str
    started: str = ""
    endpoints: tuple[_Endpoint, ...] | None = None
    metadata: dict[str, str] | None = None


def _instance(data: bytes, agent: str) -> Instance | None:
    """Return the instance that answered, by its own account; None if it does not serve `agent`."""
    stats = codec.readable(data, _Stats)
    if stats is None or stats.name != agent:
        return None
    endpoint = stats.endpoints[0] if stats.endpoints else _Endpoint()
    return Instance(
        id=stats.id,
        version=(stats.metadata or {}).get("agent-version", stats.version),
        started=stats.started,
        handled=endpoint.num_requests,
        failed=endpoint.num_errors,
        last_error=endpoint.last_error,
    )


async def with_served(bus: Bus, shown: Timeline) -> Timeline:
    """Return a request's timeline, with the agents that it waits for marked as served or not.

    This is not in the log, and a timeline is true without it. Raises BusError.
    """
    names = {waiting.for_ for waiting in shown.waiting} - {HUMAN, "thaw", shown.client}
    agents = tuple(name for name in names if not name.startswith(ANYBODY))
    try:
        served = await asyncio.gather(*(is_served(bus, agent) for agent in agents))
    except Denied:
        return shown
    there = dict(zip(agents, served, strict=True))
    waits = tuple(
        msgspec.structs.replace(waiting, served=there.get(waiting.for_)) for waiting in shown.waiting
    )
    return msgspec.structs.replace(shown, waiting=waits)


# --- breakers -------------------------------------------------------------------------------------


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """The breaker of an agent: while open, it gives no work to an agent that failed too often."""

    agent: str
    state: BreakerState
    since: int
    """In UTC µs."""
    failures: int
    """Recent failed turns, while it is closed."""
    unreadable: str = ""
    """Why its entry cannot be read; guards then take it for open."""


async def breakers(bus: Bus) -> list[Breaker]:
    """Return the known breakers; an agent without one is given work. Raises BusError."""
    found = []
    for kept in await newest(bus, "CONF", BREAKERS):
        agent = kept.subject.rpartition(".")[2]
        try:
            entry, why = read_breaker(kept.data), ""
        except DocumentInvalid as invalid:
            entry, why = BreakerEntry(state="open"), str(invalid)
        since, failures = entry.opened_at or kept.at, len(entry.failures)
        found.append(Breaker(agent=agent, state=entry.state, since=since, failures=failures, unreadable=why))
    return found


# --- freezes --------------------------------------------------------------------------------------


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """A freeze, of a request or of the whole mesh."""

    by: str
    """The person who froze it."""
    since: int
    """UTC µs."""
    reason: str
    sender: str
    """The operator whose credentials they had."""

    @property
    def in_words(self) -> str:
        """Who froze it, since when, and why."""
        who = named(self.by, self.sender) or "somebody"
        return f"by {who} since {when(self.since)}" + (f": {self.reason}" if self.reason else "")


class MeshFreeze(Frozen, frozen=True, kw_only=True):
    """The freeze of the whole mesh: an entry of CONF that guards write and every member may read."""

    frozen: bool

    @property
    def notice(self) -> str:
        """A sentence that the mesh is frozen, and what ends it."""
        return f"the whole mesh is frozen {self.in_words}; mesh thaw lets it go on"


async def mesh_freeze(bus: Bus) -> MeshFreeze:
    """Return the freeze of the whole mesh, or its end. Raises BusError.

    An unreadable entry counts as a freeze, as it does for guards.
    """
    kept = await get(bus, "CONF", FREEZE)
    entry, at = FreezeEntry(), 0
    if kept is not None:
        at = kept.at
        try:
            entry = read_freeze(kept.data)
        except DocumentInvalid as invalid:
            reason = f"{FREEZE} cannot be read ({invalid}), which guards take for a freeze"
            entry = FreezeEntry(frozen=True, reason=reason)
    return MeshFreeze(
        frozen=entry.frozen,
        by=entry.by,
        sender=entry.sender,
        since=entry.since or at,
        reason=entry.reason,
    )
