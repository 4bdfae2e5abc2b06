"""The Python half of a mesh of two languages: `guard` or `records` as a process, `<which> <url> <keys>`."""

import asyncio
import sys
from pathlib import Path

from mesh.agent import Turn, agent
from mesh.agent.runtime import Runtime
from mesh.bus.connection import connect
from mesh.bus.keys import read_key, seed_file
from mesh.guard.service import Guard
from mesh.logs import configure_logging
from protocol.messages import Move

BALANCE = {"cents": 1299, "currency": "EUR"}


@agent(name="records", version="1.2", description="Looks customers up")
async def records(turn: Turn) -> Move:
    """Hand the balance back; a polite request is asked first whether one may look."""
    if turn.facts["text"].startswith("Please") and not turn.past:
        return turn.ask("May I look into your account?", schema={"type": "string"})
    return turn.hand_back("looked up", facts={"balance": BALANCE, "reply": turn.reply})


async def main() -> None:
    which, url, keys = sys.argv[1:]
    configure_logging("json", "info")
    bus = await connect(url, name=which, seed=read_key(seed_file(Path(keys), which)).seed, wait=True)
    service = Guard(bus, identity="g1") if which == "guard" else Runtime(bus, records)
    await service.run()


if __name__ == "__main__":
    asyncio.run(main())
