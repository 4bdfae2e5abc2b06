"""What the mesh adds to a turn that a model drives: a tool call and a transfer, the vendor's SDK, a stand-in.

The mesh's time is that of the whole turn by the guard's clock, from the event that opened it to the verdict
on its transfer: delivery, journal, both model calls, the tool, the proposal. From it goes what the same two
calls take by themselves, with the same prompts, SDK and stand-in, in the same process, right afterwards.
"""

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.crew import Member, run_member, serve_agent, stand_in
from bench.figures import Figure, Target, percentile, spread
from bench.place import site
from mesh.agent import Agent, Move, Turn, tool
from mesh.bus.nats_protocol import Incoming
from mesh.client import Client
from mesh.model.loop import drive
from mesh.model.port import Hear, Model, Prompt, Reply
from mesh.model.vendors.claude import ROUTING, ClaudeModel
from protocol.wire import codec
from tests.vendors.stand_in import Answer, calls

ADDED_MS = Target("at most", 5.0)
FIRST_MS = Target("at most", 1000.0)
AGENT, NEXT, STUB = "a", "b", "stub"
INSTRUCTIONS = "You take requests first. Look up who is asking, then give the work to b. " * 8
_PATIENCE_S = 60.0


async def model_turns(directory: Path, *, turns: int, rounds: int) -> list[Figure]:
    """Measure rounds of so many turns, one at a time, each round with a process of its own."""
    first, took, bare, added = [], [], [], []
    async with site(directory) as here:
        stub = await here.crew.start(STUB, "bench.model_turn", STUB)
        await here.start_guard()
        url = await stub.ask("url")
        admitted: asyncio.Queue[int] = asyncio.Queue()
        await here.admin.subscribe(f"mesh.evt.{NEXT}.*", lambda message: _heard(message, admitted))
        opened: asyncio.Queue[int] = asyncio.Queue()
        await here.admin.subscribe(f"mesh.evt.{AGENT}.*", lambda message: _heard(message, opened))
        for _ in range(rounds):
            agent = await here.start("bench.model_turn", AGENT, url)
            first.append(await _turn(here.client, opened, admitted))
            ours = [await _turn(here.client, opened, admitted) for _ in range(turns)]
            theirs = await _bare(agent, turns)
            took.append(percentile(ours, 0.5))
            bare.append(percentile(theirs, 0.5))
            added.append(took[-1] - bare[-1])
            await agent.end()
    return [
        Figure("the first model-driven turn of a process", "ms", spread(first), target=FIRST_MS),
        Figure("a model-driven turn, tool call and transfer: p50", "ms", spread(took), spread(bare)),
        Figure("of it, what the mesh adds: p50", "ms", spread(added), target=ADDED_MS),
    ]


def _heard(message: Incoming, queue: "asyncio.Queue[int]") -> None:
    if message.data:  # not the server's own notes on a subject
        queue.put_nowait(codec.decode_event(message.data).at)


async def _turn(client: Client, opened: "asyncio.Queue[int]", admitted: "asyncio.Queue[int]") -> float:
    """Return how long one turn took, in ms."""
    async with asyncio.timeout(_PATIENCE_S):
        await client.submit("Where is my parcel?", to=AGENT)
        begun = await opened.get()
        return (await admitted.get() - begun) / 1e3


async def _bare(agent: Member, turns: int) -> list[float]:
    """Return how long the two model calls of a turn take by themselves, in ms, so many times."""
    found: list[float] = await agent.ask(turns)
    return found


# --- inside a member ------------------------------------------------------------------------------


@tool
async def look_up(name: str) -> dict[str, Any]:
    """Find a customer by name."""
    return {"id": 7, "tier": "gold"}


def _answer(asked: Mapping[str, Any]) -> Answer:
    if len(asked["messages"]) == 1:
        return calls(("look_up", {"name": "Ada"}), text="I look.")
    return calls((f"transfer_to_{NEXT}", {"summary": "Find the parcel of a gold customer."}))


class _Recording(Model):
    """A model whose prompts are kept, to ask the same once more without a mesh."""

    def __init__(self, inner: ClaudeModel) -> None:
        self._inner = inner
        self.mode = inner.mode
        self.prompts: list[Prompt] = []

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        self.prompts = [*self.prompts[-1:], prompt]
        return await self._inner.reply(prompt, hear)

    def warm(self) -> None:
        self._inner.warm()

    async def again(self, turns: int) -> list[float]:
        took = []
        for _ in range(turns):
            began = time.perf_counter()
            for prompt in self.prompts:
                await self._inner.reply(prompt)
            took.append((time.perf_counter() - began) * 1e3)
        return took


async def _agent(url: str, keys: Path, stub: str) -> None:
    model = _Recording(ClaudeModel(ROUTING, base_url=stub, api_key="stub"))

    async def work(turn: Turn) -> Move:
        return await drive(turn, model, instructions=INSTRUCTIONS, tools=(look_up,))

    async def prepare() -> None:
        await asyncio.to_thread(model.warm)

    agent = Agent(name=AGENT, handler=work, tools=(look_up,), prepare=prepare)
    await serve_agent(url, keys, agent, model.again)


if __name__ == "__main__":
    os.environ.pop("ANTHROPIC_API_KEY", None)
    told = sys.argv[1:]
    run_member(stand_in(_answer) if told[0] == STUB else _agent(told[1], Path(told[2]), told[3]))
