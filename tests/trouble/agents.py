"""The agents of these tests, as users write them: `mesh agent run tests.trouble.agents:a`.

`a` pays and hands to `b`; `b` ships and completes. Both write what they did to the file in `LEDGER`: the
world, which remembers what really happened. Facts of a request slow it down: `wait` names a file that
`a` waits for between paying and handing on.
"""

import asyncio
import os
from pathlib import Path

from mesh.agent import Turn, agent, tool
from mesh.agent.tools import NOT_DONE
from protocol.wire.moves import Move

LEDGER = Path(os.environ["LEDGER"])
VERSION = os.environ.get("VERSION", "1")
GRACE_S = float(os.environ.get("VERSION_GRACE_S", "30"))
PACE_S = float(os.environ.get("PACE_S", "0"))
"""How long each turn thinks, so that there are some under way at any moment."""


def note(line: str) -> None:
    """Write a line in one piece, as several processes do at once."""
    file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def find(key: str) -> object:
    """Say whether an effect happened."""
    lines = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    return "done" if any(line.endswith(key) for line in lines) else NOT_DONE


@tool(effect="reconcilable", reconcile=find)
async def pay(request: str, idempotency_key: str = "") -> str:
    note(f"pay {request} {idempotency_key}")
    return "done"


@tool(effect="reconcilable", reconcile=find)
async def ship(request: str, idempotency_key: str = "") -> str:
    note(f"ship {request} {idempotency_key}")
    return "done"


@agent(name="a", version=VERSION, tools=[pay], version_grace_s=GRACE_S)
async def a(turn: Turn) -> Move:
    note(f"began a {turn.request} {VERSION}")
    await turn.call(pay, request=turn.request)
    wait = turn.facts.get("wait")
    while wait and not Path(wait).exists():  # noqa: ASYNC110, ASYNC240 - the test makes it
        await asyncio.sleep(0.01)
    await asyncio.sleep(PACE_S)
    note(f"ended a {turn.request} {VERSION}")
    return turn.transfer("b", summary="ship it")


@agent(name="b", version=VERSION, tools=[ship], version_grace_s=GRACE_S)
async def b(turn: Turn) -> Move:
    note(f"began b {turn.request} {VERSION}")
    await turn.call(ship, request=turn.request)
    await asyncio.sleep(PACE_S)
    note(f"ended b {turn.request} {VERSION}")
    return turn.complete("shipped")
