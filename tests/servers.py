"""What tests of the bus share: a fleet, ways to wait, and processes of their own to kill."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from mesh.bus.connection import Bus
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.ids import AgentName, RequestId, request_id

ROOT = Path(__file__).resolve().parent.parent
ConnectAs = Callable[[str], Awaitable[Bus]]

PATIENCE_S = 120.0
"""How long a test waits for anything. Nothing takes so long on a busy machine; what does will never come."""

INTENTS = {"d": ("review", "read on"), "e": ("review",)}
"""Intents that agents of `FLEET` list; one of them cannot stand in a subject."""

FLEET = Fleet(
    name="test",
    entry=AgentName("a"),
    agents={name: AgentEntry(name=AgentName(name), intents=INTENTS.get(name)) for name in "abcde"},
    clients=(AgentName("c1"), AgentName("c2")),
    operators=(AgentName("op"),),
    viewers=(AgentName("audit"),),
    human=True,
    swarms=True,
)

_made = 0


def fresh(client: str = "c1") -> RequestId:
    """Return a request id that no other test of this run uses."""
    global _made
    _made += 1
    return request_id(client, 1_800_000_000_000, os.getpid().to_bytes(4) + _made.to_bytes(6))


def alive(pid: int) -> bool:
    """Return True if a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Wait for an observable change; TimeoutError means that it did not come."""
    pause_s = 0.002
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.2, 0.03)  # who looks without a pause takes the time of what it awaits


async def eventually(ask: Callable[[], Awaitable[bool]], within_s: float = PATIENCE_S) -> None:
    """As `until`, for a condition that has to be asked for."""
    pause_s = 0.01
    async with asyncio.timeout(within_s):
        while not await ask():
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.2, 0.1)


def ran(*command: str | Path, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments to its end, with this checkout's code."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


class Child:
    """Another Python process that says what it does, a line at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def line(self, start: str, within_s: float = PATIENCE_S) -> str:
        """Return the next line that begins with `start`; what comes before is skipped."""
        assert self._process.stdout is not None
        async with asyncio.timeout(within_s):
            while raw := await self._process.stdout.readline():
                if (text := raw.decode().rstrip()).startswith(start):
                    return text
        raise AssertionError(f"the process ended without saying {start!r}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        return await self._process.wait()


@contextlib.asynccontextmanager
async def child(module: str, *arguments: str) -> AsyncIterator[Child]:
    """Run `python -m <module> <arguments>` from the repository, and kill it in the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        yield Child(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def queues(admin: Bus, kind: str) -> list[str]:
    """Return the streams of a kind: every sender's for PROP or CTL, every agent's for STEPS, else the one."""
    names: list[str] = (await admin.api("STREAM.NAMES"))["streams"]
    return [name for name in names if kind in (name, name.partition("-")[0])]
