"""Who serves an agent: asked by its name, so that only the agent's own account can answer.

The server passes on the first answer to a ping and drops the rest, but for those that other connections of
the agent send in the same moment. Of statistics each instance sends its own; who asks takes no more than
`MOST_INSTANCES` of them.
"""

import asyncio

from mesh.bus.connection import Bus
from mesh.errors import NoResponders, OutcomeUnknown

PING_S = 1.0
GATHER_S = 0.4
"""How long instances are given to answer; nothing says how many there are."""
MOST_INSTANCES = 32
"""As many answers as fit into what a server holds for a slow connection (64 MiB), however large they are."""


async def ping(bus: Bus, agent: str) -> bytes | None:
    """Return what one instance of `agent` answers, empty if it listens and is silent; None if nobody does.

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

    One that listens and is silent counts as there: what it holds is for the turn's own time to end.
    """
    return await ping(bus, agent) is not None


async def statistics(bus: Bus, agent: str) -> list[bytes]:
    """Return what the instances of `agent` say of themselves. Raises Denied, Unreachable, Disconnected."""
    answers: list[bytes] = []
    heard = await bus.subscribe(
        bus.new_inbox(), lambda message: answers.append(message.data), most=MOST_INSTANCES
    )
    bus.send(f"$SRV.STATS.{agent}", reply=heard.subject)
    await asyncio.sleep(GATHER_S)
    await heard.close()
    return answers
