"""Who is there: the fleet document, the agents' cards, and who answers at this moment."""

import asyncio
import contextlib
from typing import Any

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.kept import get
from mesh.bus.streams import inbox_consumer
from mesh.bus.wire import Incoming
from mesh.cli.errors import NotFound
from mesh.errors import BusError, Denied, NoResponders
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
    """Return the fleet document as guards see it. Raises NotFound."""
    kept = await get(bus, "CONF", FLEET)
    if kept is None:
        raise NotFound("the bus has no fleet document; run `mesh setup`")
    return msgspec.structs.replace(msgspec.json.decode(kept.data, type=Fleet), revision=kept.seq)


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
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(kept.data, type=Card)
    return None  # an agent writes its own card, and may write anything


async def inbox_state(bus: Bus, agent: str) -> tuple[int, int]:
    """Return how many handoffs an agent has not acknowledged, and from where in the log the oldest is."""
    info = await bus.api(f"CONSUMER.INFO.LOG.{inbox_consumer(agent)}")
    return int(info["num_pending"]) + int(info["num_ack_pending"]), int(info["ack_floor"]["stream_seq"]) + 1


async def instances(bus: Bus) -> dict[str, list[Instance]] | None:
    """Return who answers, by agent; None if these credentials may not ask."""
    found: dict[str, list[Instance]] = {}

    def hear(message: Incoming) -> None:
        with contextlib.suppress(msgspec.MsgspecError, LookupError, TypeError):
            said = msgspec.json.decode(message.data)
            found.setdefault(said["name"], []).append(_instance(said))

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


def _instance(said: dict[str, Any]) -> Instance:
    endpoint = (said.get("endpoints") or [{}])[0]
    return Instance(
        id=said["id"],
        version=str((said.get("metadata") or {}).get("agent-version", said["version"])),
        started=said.get("started", ""),
        handled=int(endpoint.get("num_requests", 0)),
        failed=int(endpoint.get("num_errors", 0)),
        last_error=str(endpoint.get("last_error", "")),
    )
