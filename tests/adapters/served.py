"""What the scripts of `stage.py` share: the world, and the runtimes of several agents in one process."""

import asyncio
import json
import os
from collections.abc import Iterable
from pathlib import Path

from mesh.agent import Agent
from mesh.agent._runtime import Runtime
from mesh.bus.connection import connect

LEDGER = Path(os.environ["LEDGER"])


def note(line: str) -> None:
    with LEDGER.open("a") as ledger:
        ledger.write(line + "\n")


async def serve(agents: Iterable[Agent], url: str, seeds: str) -> None:
    """Run agents until the process ends.

    Args:
        seeds: as JSON, by the agents' names.
    """
    known = json.loads(seeds)
    buses = {
        agent: await connect(url, name=agent.name, seed=known[agent.name], wait=True) for agent in agents
    }
    await asyncio.gather(*(Runtime(bus, agent).run() for agent, bus in buses.items()))
