"""The processes of a measurement: started, told what to do a line at a time, and ended by the pid we hold.

Each member is `python -m MODULE ROLE URL KEYS …`, says `ready` when it is, and ends when its standard
input does, so that none outlives the measurement that started it. A guard is
`python -m bench.crew guard URL KEYS NAME`.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from mesh.agent import Agent
from mesh.agent._runtime import Runtime
from mesh.bus.connection import Bus, connect
from mesh.bus.credentials import read_key, seed_file
from mesh.bus.roles import GUARD
from mesh.guard.service import Guard
from mesh.service.logs import configure_logging
from mesh.service.run import collect_rarely

if TYPE_CHECKING:
    from tests.vendors.stand_in import Script

ROOT = Path(__file__).resolve().parent.parent
READY = "ready"
_READY_S = 120.0


class MemberFailed(RuntimeError):
    """A process of the measurement ended or said something else than it should."""


class Member:
    """One process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, errors: Path) -> None:
        self.name = name
        self._process = process
        self._errors = errors

    @property
    def pid(self) -> int:
        return self._process.pid

    async def line(self) -> str:
        """Return the next line that it says. Raises MemberFailed when it ended."""
        assert self._process.stdout is not None
        said = await self._process.stdout.readline()
        if not said:
            tail = self._errors.read_text(errors="replace")[-2000:]
            raise MemberFailed(f"{self.name} ended: {tail}")
        return said.decode().rstrip()

    async def ask(self, what: Any, *, within_s: float = 600.0) -> Any:
        """Send one line of JSON and return the line that comes back."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(what) + b"\n")
        async with asyncio.timeout(within_s):
            return msgspec.json.decode(await self.line())

    async def end(self) -> None:
        if self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), 10)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


class Crew:
    """`async with Crew(directory) as crew:`; its members end with it.

    Args:
        environment: of the members, besides this process's own.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._environment = {**os.environ, **(environment or {})}
        self.members: dict[str, Member] = {}

    async def start(self, name: str, module: str, *arguments: str) -> Member:
        """Start a process and wait until it is ready."""
        errors = self._directory / f"{name}.log"
        with errors.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=self._environment,
                limit=1 << 26,
            )
        member = self.members[name] = Member(name, process, errors)
        async with asyncio.timeout(_READY_S):
            if (said := await member.line()) != READY:
                raise MemberFailed(f"{name} said {said!r}, not {READY!r}")
        return member

    async def start_all(self, module: str, roles: Iterable[str], *arguments: str) -> None:
        """Start a process for each of `roles`, named so, and wait until all are ready."""
        async with asyncio.TaskGroup() as starting:
            for role in roles:
                starting.create_task(self.start(role, module, role, *arguments))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(member.end() for member in self.members.values()))


# --- inside a member ------------------------------------------------------------------------------


def say(what: Any) -> None:
    """Say one line to the process that started this one: a word, or a value as JSON."""
    line = what if isinstance(what, str) else msgspec.json.encode(what).decode()
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def obey(task: Callable[[Any], Awaitable[Any]] | None = None) -> None:
    """Say that this process is ready, then answer each line with what `task` returns, until there is none."""
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    say(READY)
    while line := await lines.readline():
        if task is not None:
            say(await task(msgspec.json.decode(line)))


# --- members that several measurements start -------------------------------------------------------

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
    from tests.vendors.claude import StubClaude  # a guard does not need it, and is measured

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
