"""Processes of a bench with models: the stand-in for Claude, and an agent that serves until it is told."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.crew import obey
from mesh.agent import Agent
from mesh.agent._runtime import Runtime
from mesh.bus.connection import connect
from mesh.bus.credentials import read_key, seed_file
from mesh.testing.claude_stub import Script, StubClaude

_LOOK_S = 0.01


async def stand_in(answer: Script) -> None:
    """Stand in for Claude, and tell its URL to each who asks."""
    async with StubClaude(answer) as stub:

        async def url(_: Any) -> str:
            return f'"{stub.url}"'

        await obey(url)


async def serve(
    url: str, keys: Path, agent: Agent, task: Callable[[Any], Awaitable[Any]] | None = None
) -> None:
    """Serve an agent until standard input ends.

    Args:
        task: answers each line that comes, as `obey` has it.
    """
    async with await connect(url, name=agent.name, seed=read_key(seed_file(keys, agent.name)).seed) as bus:
        runtime = Runtime(bus, agent)
        running = asyncio.create_task(runtime.run())
        while not runtime.ready and not running.done():  # noqa: ASYNC110 - it sets no event
            await asyncio.sleep(_LOOK_S)
        await obey(task)
        await runtime.drain(1.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
