"""Presence: which instances serve an agent. Only the account of that name can answer. Guards answer, too.

The server passes on the first answer to a ping, and mostly drops the rest. Each instance sends its own
statistics; a caller takes at most `MOST_INSTANCES` of them.
"""

import asyncio

import msgspec

from mesh.bus.connection import Bus
from mesh.errors import NoResponders, OutcomeUnknown

PING_S = 1.0
GATHER_S = 0.4
"""How long instances have to answer. Their number is unknown."""
MOST_INSTANCES = 32
"""So many answers fit into a server's buffer for a slow connection (64 MiB), whatever their size."""


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """What a guard measured of clocks: its statistics have it as the endpoint's `data`."""

    machine_ahead_us: int
    """How far its machine's clock is ahead of the server's; negative if it is behind."""
    within_us: int
    """How far `machine_ahead_us` may be wrong: half a round trip explains so much."""
    servers_apart_us: int
    """How far the clocks of the bus's servers are apart, beyond what round trips explain."""


async def ping(bus: Bus, agent: str) -> bytes | None:
    """Return the answer of one instance of `agent`, empty if it listens and is silent; None if there is none.

    Raises Denied, Unreachable.
    """
    try:
        return (await bus.request(f"$SRV.PING.{agent}", timeout_s=PING_S)).data
    except NoResponders:
        return None
    except OutcomeUnknown:
        return b""


async def is_served(bus: Bus, agent: str) -> bool:
    """Return True if any instance of `agent` runs. Raises Denied, Unreachable.

    A silent instance counts: the time limit of a turn ends the work that it holds.
    """
    return await ping(bus, agent) is not None


async def statistics(bus: Bus, agent: str) -> list[bytes]:
    """Return the statistics of each instance of `agent`, or of each guard.

    Raises Denied, Unreachable, Disconnected.
    """
    answers: list[bytes] = []
    heard = await bus.subscribe(
        bus.new_inbox(), lambda message: answers.append(message.data), most=MOST_INSTANCES
    )
    bus.send(f"$SRV.STATS.{agent}", reply=heard.subject)
    await asyncio.sleep(GATHER_S)
    await heard.close()
    return answers
