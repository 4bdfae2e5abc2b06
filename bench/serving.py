"""Members that several measurements start: a guard, an agent that serves, and the stand-in for Claude.

A guard is `python -m bench.serving guard URL KEYS NAME`.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.crew import obey
from mesh.agent import Agent
from mesh.agent._runtime import Runtime
from mesh.bus.connection import Bus, connect
from mesh.bus.credentials import read_key, seed_file
from mesh.bus.roles import GUARD
from mesh.guard.service import Guard
from mesh.service.logs import configure_logging
from mesh.service.run import collect_rarely

if TYPE_CHECKING:
    from mesh.testing.claude_stub import Script

Answer = Callable[[Any], Awaitable[Any]]
"""Answers a line that a member is told, as `obey` has it."""
_LOOK_S = 0.01
_GRACE_S = 1.0


async def join(url: str, keys: Path, name: str) -> Bus:
    """Return a connection with the credentials of `name`."""
    return await connect(url, name=name, seed=read_key(seed_file(keys, name)).seed)


async def serve(service: Guard | Runtime, answer: Answer | None = None, *, ready: bool = True) -> None:
    """Run a service until standard input ends. Raises what it dies of.

    Args:
        ready: False for a process that counts as started before its service takes work.
    """
    running = asyncio.create_task(service.run())
    while ready and not service.ready and not running.done():  # noqa: ASYNC110 - it sets no event
        await asyncio.sleep(_LOOK_S)
    talk = asyncio.create_task(obey(answer))
    done, _ = await asyncio.wait((running, talk), return_when=asyncio.FIRST_COMPLETED)
    await service.drain(_GRACE_S)
    for task in (running, talk):
        task.cancel()
    await asyncio.gather(running, talk, return_exceptions=True)
    for task in done:
        task.result()


async def serve_agent(url: str, keys: Path, agent: Agent, answer: Answer | None = None) -> None:
    """Serve an agent until standard input ends."""
    async with await join(url, keys, agent.name) as bus:
        await serve(Runtime(bus, agent), answer)


async def serve_guard(url: str, keys: Path, name: str) -> None:
    """Guard until standard input ends."""
    async with await join(url, keys, GUARD) as bus:
        await serve(Guard(bus, identity=name))


async def stand_in(answer: "Script") -> None:
    """Stand in for Claude, and tell its URL to each who asks."""
    from mesh.testing.claude_stub import StubClaude  # a guard does not need it, and is measured

    async with StubClaude(answer) as stub:

        async def url(_: Any) -> str:
            return f'"{stub.url}"'

        await obey(url)


def run_member(member: Coroutine[Any, Any, None], *, level: str = "info") -> None:
    """Run a member of a measurement as a service's process runs."""
    configure_logging("json", level, for_good=True)
    collect_rarely()
    asyncio.run(member)


if __name__ == "__main__":
    run_member(serve_guard(sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
