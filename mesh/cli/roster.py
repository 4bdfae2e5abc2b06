"""Who is there: the fleet document, the agents' cards, and who answers at this moment."""

import asyncio

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.kept import get
from mesh.bus.streams import inbox_consumer
from mesh.bus.wire import Incoming
from mesh.cli.errors import NotFound
from mesh.errors import BusError, Denied, NoResponders
from protocol import codec
from protocol.documents import read_fleet
from protocol.fleet import AgentEntry, Fleet
from protocol.presence import Card
from protocol.subjects import FLEET, card

_GATHER_S = 0.4
"""How long instances are given to answer; nothing says how many there are."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One process that serves an agent, by its own word."""

    id: str
    version: str
    started: str = ""
    handled: int = 0
    failed: int = 0
    last_error: str = ""


class Member(msgspec.Struct, frozen=True, kw_only=True):
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


async def roster(bus: Bus) -> list[Member]:
    """Return the fleet's agents, each with its card and its instances. Raises NotFound, BusError."""
    fleet = await fleet_of(bus)
    alive = await instances(bus)
    return [
        Member(
            name=name,
            entry=entry,
            card=await _card(bus, name),
            instances=None if alive is None else tuple(alive.get(name, ())),
            waiting=(await inbox_state(bus, name))[0],
        )
        for name, entry in fleet.agents.items()
    ]


async def _card(bus: Bus, name: str) -> Card | None:
    kept = await get(bus, "CARDS", card(name))
    if kept is None:
        return None
    return codec.readable(kept.data, Card)  # an agent writes its own card, and may write anything


async def inbox_state(bus: Bus, agent: str) -> tuple[int, int]:
    """Return how many handoffs an agent has not acknowledged, and from where in the log the oldest is."""
    info = await bus.api(f"CONSUMER.INFO.LOG.{inbox_consumer(agent)}")
    return int(info["num_pending"]) + int(info["num_ack_pending"]), int(info["ack_floor"]["stream_seq"]) + 1


async def instances(bus: Bus) -> dict[str, list[Instance]] | None:
    """Return who answers, by agent; None if these credentials may not ask."""
    found: dict[str, list[Instance]] = {}

    def hear(message: Incoming) -> None:
        said = codec.readable(message.data, _Stats)
        if said is not None:
            found.setdefault(said.name, []).append(_instance(said))

    try:
        await bus.request("$SRV.PING")  # whether anybody is there, and whether one may ask
    except NoResponders:
        return {}
    except Denied:
        return None
    except BusError:
        pass
    inbox = bus.new_inbox()
    heard = await bus.subscribe(inbox, hear)
    bus.send("$SRV.STATS", reply=inbox)
    await asyncio.sleep(_GATHER_S)
    await heard.close()
    return found


class _Endpoint(msgspec.Struct, frozen=True):
    num_requests: int = 0
    num_errors: int = 0
    last_error: str = ""


class _Stats(msgspec.Struct, frozen=True):
    """What an instance answers, by NATS ADR-32; anybody who hears the question may answer anything."""

    name: str
    id: str
    version: str
    started: str = ""
    endpoints: tuple[_Endpoint, ...] | None = None
    metadata: dict[str, str] | None = None


def _instance(said: _Stats) -> Instance:
    endpoint = said.endpoints[0] if said.endpoints else _Endpoint()
    return Instance(
        id=said.id,
        version=(said.metadata or {}).get("agent-version", said.version),
        started=said.started,
        handled=endpoint.num_requests,
        failed=endpoint.num_errors,
        last_error=endpoint.last_error,
    )
