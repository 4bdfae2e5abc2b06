"""How soon somebody who follows a request hears what its model says, a token each 20 ms.

The agent's model stands in its own process and says when it speaks: each token is the time at which it was
said. Client and agent share one machine's clock. The first token of a reply counts like all others; how long
it took from the submit is counted, too. The model answers at once, so that all of it is the mesh's.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import NamedTuple

from bench.crew import run_member, serve_agent
from bench.figures import Figure, Target, percentile, spread
from bench.place import AGENTS, site
from mesh.agent import Agent, Move, Turn
from mesh.client import Client
from mesh.client.follow import AgentNote
from mesh.model.loop import drive
from mesh.model.port import Hear, Model, Prompt, Reply

FIRST_MS = Target("at most", 25.0)
HEARD_MS = Target("at most", 16.0)
AGENT = AGENTS[0]
TOKEN_S = 0.02
TOKENS = 100
FEW = 3
"""Requests in a round, one after the other."""
MANY = 64
"""Requests whose replies stream at the same time out of one process."""
_PATIENCE_S = 60.0


async def live_text(directory: Path, *, rounds: int) -> list[Figure]:
    """Measure rounds of one reply, and of `MANY` at a time."""
    first, alone, crowded, notes = [], [], [], []
    async with site(directory) as here:
        await here.start_guard()
        await here.start("bench.live_text", AGENT)
        for _ in range(rounds):
            few = [await _followed(here.client) for _ in range(FEW)]
            first.append(percentile([one.first_ms for one in few], 0.5))
            alone.append(percentile([token for one in few for token in one.took_ms], 0.5))
            began = time.perf_counter()
            many = await asyncio.gather(*(_followed(here.client) for _ in range(MANY)))
            elapsed_s = time.perf_counter() - began
            crowded.append(percentile([token for one in many for token in one.took_ms], 0.5))
            notes.append(sum(one.notes for one in many) / elapsed_s)
    return [
        Figure("a request is sent, its first token is heard: p50", "ms", spread(first), target=FIRST_MS),
        Figure("a token is said, a follower hears it: p50", "ms", spread(alone), target=HEARD_MS),
        Figure(f"the same, {MANY} replies at a time: p50", "ms", spread(crowded)),
        Figure(f"notes of text a second, {MANY} replies at a time", "1/s", spread(notes)),
    ]


class _Heard(NamedTuple):
    """What was heard of one reply."""

    first_ms: float
    """From the submit to the first token."""
    took_ms: list[float]
    """Of each token."""
    notes: int
    """Notes of text."""


async def _followed(client: Client) -> _Heard:
    """Follow one request from its submit to its end."""
    took_ms, notes, first_ns = [], 0, 0
    request, sent_ns = client.new_id(), time.time_ns()
    async with asyncio.timeout(_PATIENCE_S), client.follow(request) as feed:
        await client.submit("Speak.", to=AGENT, request=request)
        async for item in feed:
            now_ns = time.time_ns()
            if isinstance(item, AgentNote) and item.note.kind == "text":
                first_ns = first_ns or now_ns
                notes += 1
                took_ms += [(now_ns - int(said)) / 1e6 for said in item.note.text.split()]
    return _Heard((first_ns - sent_ns) / 1e6, took_ms, notes)


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
