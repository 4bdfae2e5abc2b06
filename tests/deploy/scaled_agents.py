"""Agents that are scaled: `mesh agent run tests.deploy.scaled_agents:a`.

`a` pays and, once the file in the fact `wait` is there, hands to `b`, which ships and completes. Each writes
what it did, and which process did it, to the file in `LEDGER`.
"""

import asyncio
import os
from pathlib import Path

from mesh.agent import Turn, agent
from protocol.wire.moves import Move
from tests.trouble.agents import note, pay, ship


@agent(name="a", tools=[pay])
async def a(turn: Turn) -> Move:
    note(f"began {turn.request} {os.getpid()}")
    await turn.call(pay, request=turn.request)
    note(f"paid {turn.request} {os.getpid()}")
    wait = turn.facts.get("wait")
    while wait and not Path(wait).exists():  # noqa: ASYNC110, ASYNC240 - the test makes it
        await asyncio.sleep(0.01)
    return turn.transfer("b", summary="ship it")


@agent(name="b", tools=[ship])
async def b(turn: Turn) -> Move:
    await turn.call(ship, request=turn.request)
    return turn.complete("shipped")
