"""How soon somebody who follows a request hears what its model says, a token each 20 ms.

The agent's model stands in its own process and says when it speaks: each token is the time at which it was
said. Client and agent share one machine's clock. The first token of a reply counts like all others.
"""

import asyncio
import sys
import time
from pathlib import Path

from bench.crew import run_member, serve_agent
from bench.figures import Figure, Target, percentile, spread
from bench.place import AGENTS, site
from mesh.agent import Agent, Move, Turn
from mesh.client import Client
from mesh.client.follow import Heard
from mesh.model.loop import drive
from mesh.model.port import Hear, Model, Prompt, Reply

HEARD_MS = Target("at most", 16.0)
AGENT = AGENTS[0]
TOKEN_S = 0.02
TOKENS = 100
MANY = 64
"""Requests whose replies stream at the same time out of one process."""
_PATIENCE_S = 60.0


async def live_text(directory: Path, *, rounds: int) -> list[Figure]:
    """Measure rounds of one reply, and of `MANY` at a time."""
    alone, crowded, notes = [], [], []
    async with site(directory) as here:
        await here.start_guard()
        await here.start("bench.live_text", AGENT)
        for _ in range(rounds):
            took, _ = await _followed(here.client)
            alone.append(percentile(took, 0.5))
            began = time.perf_counter()
            found = await asyncio.gather(*(_followed(here.client) for _ in range(MANY)))
            elapsed_s = time.perf_counter() - began
            crowded.append(percentile([one for took, _ in found for one in took], 0.5))
            notes.append(sum(count for _, count in found) / elapsed_s)
    return [
        Figure("a token is said, a follower hears it: p50", "ms", spread(alone), target=HEARD_MS),
        Figure(f"the same, {MANY} replies at a time: p50", "ms", spread(crowded)),
        Figure(f"notes of text a second, {MANY} replies at a time", "1/s", spread(notes)),
    ]


async def _followed(client: Client) -> tuple[list[float], int]:
    """Follow one request; return how long each token took (ms), and how many notes of text there were."""
    took, notes = [], 0
    request = await client.submit("Speak.", to=AGENT)
    async with asyncio.timeout(_PATIENCE_S), client.follow(request) as feed:
        async for item in feed:
            now = time.time_ns()
            if isinstance(item, Heard) and item.note.kind == "text":
                notes += 1
                took += [(now - int(said)) / 1e6 for said in item.note.text.split()]
    return took, notes


class _Speaker(Model):
    """Says what time it is."""

    mode = "speaker"

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        assert hear is not None
        for _ in range(TOKENS):
            hear(f"{time.time_ns()} ")
            await asyncio.sleep(TOKEN_S)
        return Reply(text="said")


async def _agent(url: str, keys: Path) -> None:
    model = _Speaker()

    async def work(turn: Turn) -> Move:
        return await drive(turn, model, instructions="Speak.", tools=())

    await serve_agent(url, keys, Agent(name=AGENT, handler=work, concurrency=MANY))


if __name__ == "__main__":
    run_member(_agent(sys.argv[2], Path(sys.argv[3])))
